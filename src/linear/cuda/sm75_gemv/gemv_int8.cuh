#pragma once

#include "gemm/cuda/expert_tiles.cuh"
#include "linear/cuda/sm75_gemv/gemv_kernels.cuh"
#include "linear/cuda/sm75_gemv/quantize_block.cuh"
#include "linear/cuda/sm75_gemv/staged_weights.cuh"

// The short way for the most usual of gemv's problems: one launch, nothing but y written to memory. Blocks of 32, 64 or
// 128 k or one block per row, neither weights nor activations with offsets.
namespace qcore::gemv {

// Dynamic shared memory, in bytes: codes of x, their scales [rows, P], a round's sums [slots, rows, 32] (with one block
// per row those of each warp), and the weight's stages.
struct Int8Layout {
  int rows, blocks, code_stride, scale_stride, slots;
  int x_scales_at, sums_at;
  StagedLayout weights;
};

struct Int8Arguments {
  DeviceWeight w;
  DeviceOutput out;
  RowQuantizer x;
  std::int64_t y_at[RowQuantizer::kMaxRows];  // out.y.row_offset()
  int warps;
  bool one_block;  // per row; its length is none of 32, 64 and 128
  Int8Layout layout;
  ExpertCounts experts;  // of a kernel for experts, whose w has the n and the panels of one, and x one row
};

// Chunks that a warp multiplies in one round.
constexpr int round_chunks(int bits) { return batch_chunks(bits); }

inline Int8Layout int8_layout(const Int8Arguments& a) {
  const RowQuantizer& x = a.x;
  Int8Layout to{x.rows, x.blocks, x.code_stride, x.scale_stride, 0, 0, 0, {}};
  to.slots = a.one_block ? a.warps : a.warps * round_chunks(a.w.bits) / static_cast<int>(a.w.block_size / kChunk);
  to.x_scales_at = to.rows * to.code_stride;
  to.sums_at = to.x_scales_at + to.rows * to.scale_stride * 4;
  to.weights = StagedLayout(a.w, a.warps, to.sums_at + to.rows * to.slots * kColumns * 4);
  return to;
}

// Sets all but the experts. Returns false if this does not take the problem. With `experts` thread blocks have a row
// each, and every group of columns has its own.
bool int8_arguments(const LinearProblem& problem, const DeviceWeight& w, bool experts, std::int64_t multiprocessors,
                    Int8Arguments& arguments);

// `overlap`: the device has compute capability 9.0.
void run_int8(const Int8Arguments& arguments, bool overlap, cudaStream_t stream);

}  // namespace qcore::gemv
