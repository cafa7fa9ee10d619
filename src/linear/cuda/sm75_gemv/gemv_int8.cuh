#pragma once

#include "gemm/cuda/expert_tiles.cuh"
#include "linear/cuda/sm75_gemv/gemv_kernels.cuh"
#include "linear/cuda/sm75_gemv/quantize_block.cuh"
#include "linear/cuda/sm75_gemv/staged_weights.cuh"

// The short way for the most usual of gemv's problems: one launch, nothing but y written to memory. Blocks of 32, 64 or
// 128 k or one block per row, neither weights nor activations with offsets.
namespace qcore::gemv {

// Dynamic shared memory, in bytes: codes of x, their scales [rows, P], a round's sums [slots, rows, 32] (with one block
// per row those of each warp; two rounds' where warps of their own add them), barriers, and the weight's stages.
struct Int8Layout {
  int rows, blocks, code_stride, scale_stride, slots;
  int x_scales_at, sums_at, sums_stride, barriers_at;
  StagedLayout weights;
};

struct Int8Arguments {
  DeviceWeight w;
  DeviceOutput out;
  RowQuantizer x;
  std::int64_t y_at[RowQuantizer::kMaxRows];  // out.y.row_offset()
  int warps, adders;                          // that multiply, and that only add sums
  bool one_block;                             // per row; its length is none of 32, 64 and 128
  Int8Layout layout;
  ExpertCounts experts;  // of a kernel for experts, whose w has the n and the panels of one, and x one row
};

// Chunks that a warp multiplies in one round.
constexpr int round_chunks(int bits) { return batch_chunks(bits); }

constexpr int kAdders = 2;  // warps that add the sums of one row each

inline Int8Layout int8_layout(const Int8Arguments& a) {
  const RowQuantizer& x = a.x;
  Int8Layout to{x.rows, x.blocks, x.code_stride, x.scale_stride, 0, 0, 0, 0, 0, {}};
  to.slots = a.one_block ? a.warps : a.warps * round_chunks(a.w.bits) / static_cast<int>(a.w.block_size / kChunk);
  to.x_scales_at = to.rows * to.code_stride;
  to.sums_at = to.x_scales_at + to.rows * to.scale_stride * 4;
  to.sums_stride = to.rows * to.slots * kColumns * 4;
  to.barriers_at = to.sums_at + (a.adders ? 2 : 1) * to.sums_stride;
  to.weights = StagedLayout(a.w, a.warps, to.barriers_at + (a.adders ? 6 * 8 : 0));
  if (a.adders) to.weights.copier = a.warps;
  return to;
}

// Sets all but the experts. Returns false if this does not take the problem. With `experts` thread blocks have a row
// each, and every group of columns has its own.
bool int8_arguments(const LinearProblem& problem, const DeviceWeight& w, bool experts, std::int64_t multiprocessors,
                    Int8Arguments& arguments);

// `overlap`: the device has compute capability 9.0.
void run_int8(const Int8Arguments& arguments, bool overlap, cudaStream_t stream);

// Launches the kernels with adders, which are compiled for 9.0 alone.
void run_int8_ahead(const Int8Arguments& arguments, const LaunchShape& shape, cudaStream_t stream);

}  // namespace qcore::gemv
