#include "gemm/cuda/weight_sums.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx.cuh"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 256, kQuads = PackedLayout::kPanelRows / 4;
constexpr int kMostSlices = kThreads / kQuads;
constexpr int kSliceSteps = 4;  // what a thread adds at least, so that short blocks take few threads

struct Parts {
  std::int64_t of[kMostSlices][PackedLayout::kPanelRows];
};

// Each of `slices` threads adds its share of a block's steps, of four of its panel's rows. Long blocks take many
// threads, because each of them waits for memory.
__global__ void __launch_bounds__(kThreads) weight_sums_kernel(const DeviceWeight w, int slices, float* sums) {
  auto& parts = block_shared<Parts>().of;
  const int quad = static_cast<int>(threadIdx.x) % kQuads, slice = static_cast<int>(threadIdx.x) / kQuads % slices;
  const int items = kMostSlices / slices, own = static_cast<int>(threadIdx.x) / (kQuads * slices);
  const std::int64_t first_item = static_cast<std::int64_t>(blockIdx.x) * items;
  const std::int64_t tap_items = w.panels * w.blocks, item = first_item + own;
  if (item < w.taps * tap_items) {
    const std::int64_t tap = item / tap_items, panel = item % tap_items / w.blocks, p = item % w.blocks;
    const std::int64_t steps = w.block_steps(p);
    const auto* words = reinterpret_cast<const uint4*>(w.words) +
                        ((panel * w.taps + tap) * w.steps + p * w.steps_per_block) * kQuads + quad;
    std::int64_t stored[4] = {};
#pragma unroll 4
    for (std::int64_t step = slice; step < steps; step += slices) {
      const uint4 four = words[step * kQuads];
      const std::uint32_t rows[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t upper = w.bits == 8 ? 0u : ptx::add_bytes(rows[i] >> 4 & 0x0f0f0f0fu, 0);
        stored[i] += ptx::add_bytes(w.bits == 8 ? rows[i] : rows[i] & 0x0f0f0f0fu, upper);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) parts[own * slices + slice][4 * quad + i] = stored[i];
  }
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < items * PackedLayout::kPanelRows; at += kThreads) {
    const int of = at / PackedLayout::kPanelRows, row = at % PackedLayout::kPanelRows;
    const std::int64_t whole = first_item + of, p = whole % w.blocks, panel = whole % tap_items / w.blocks;
    if (whole >= w.taps * tap_items) break;
    std::int64_t stored = 0;
    for (int i = 0; i < slices; ++i) stored += parts[of * slices + i][row];
    // Padding holds code 0, stored like every code with its shift.
    const std::int64_t shift = w.bits == 8 ? 128 * 4 : 8 * 8, parameter = w.parameter_index(panel, p, row);
    sums[whole * PackedLayout::kPanelRows + row] =
        numerics::block_weight_sum(stored - shift * w.block_steps(p), w.block_length(p), w.scales[parameter],
                                   w.offsets ? w.offsets[parameter] : 0.0f);
  }
}

}  // namespace

void add_weight_sums(DeviceWeight& w, float* sums, cudaStream_t stream) {
  w.sums = sums;
  if (weight_sum_count(w) == 0) return;
  int slices = 1;
  while (slices < kMostSlices && slices * kSliceSteps < w.block_steps(0)) slices *= 2;
  const std::int64_t blocks = ceil_div(w.taps * w.panels * w.blocks, kMostSlices / slices);
  launch("weight_sums", weight_sums_kernel, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, stream, w, slices,
         sums);
}

}  // namespace qcore
