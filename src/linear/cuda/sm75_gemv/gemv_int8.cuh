#pragma once

#include "gemm/cuda/expert_tiles.cuh"
#include "linear/cuda/sm75_gemv/gemv_kernels.cuh"
#include "linear/cuda/sm75_gemv/quantize_block.cuh"

// The short way for the most usual of gemv's problems: one launch, nothing but y written to memory. Blocks of 32, 64 or
// 128 k or one block per row, neither weights nor activations with offsets.
namespace qcore::gemv {

// Dynamic shared memory, in bytes: codes of x, their scales [rows, P], the weight's scales [2 panels][P][16], a round's
// sums [slots, rows, 32] (with one block per row those of each warp), and weights that wait.
struct Int8Layout {
  int rows, blocks, code_stride, scale_stride, slots;
  int x_scales_at, scales_at, scales_stride, sums_at, waiting_at, bytes;

  Int8Layout() = default;
  Int8Layout(const RowQuantizer& x, int slots_, int waiting_bytes)
      : rows(x.rows), blocks(x.blocks), code_stride(x.code_stride), scale_stride(x.scale_stride), slots(slots_) {
    x_scales_at = rows * code_stride;
    scales_at = x_scales_at + rows * scale_stride * 4;
    scales_stride = static_cast<int>(round_up(blocks, 2) + 1) * 64;  // the second panel's take the other banks
    sums_at = scales_at + 2 * scales_stride;
    waiting_at = sums_at + rows * slots * kColumns * 4;
    bytes = waiting_at + waiting_bytes;
  }
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

template <int kBits>
using Int8Weights = RoundWeights<kBits, kBits == 8 ? 2 : 3>;

inline Int8Layout int8_layout(const Int8Arguments& a) {
  return {a.x, a.one_block ? a.warps : a.warps * round_chunks(a.w.bits) / static_cast<int>(a.w.block_size / kChunk),
          a.w.bits == 8 ? Int8Weights<8>::waiting_bytes(a.warps) : Int8Weights<4>::waiting_bytes(a.warps)};
}

// Sets all but the experts. Returns false if this does not take the problem. With `experts` thread blocks have a row
// each.
bool int8_arguments(const LinearProblem& problem, const DeviceWeight& w, bool experts, Int8Arguments& arguments);

// `overlap`: the device has compute capability 9.0.
void run_int8(const Int8Arguments& arguments, bool overlap, cudaStream_t stream);

}  // namespace qcore::gemv
