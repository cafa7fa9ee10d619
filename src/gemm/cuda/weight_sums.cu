#include "gemm/cuda/weight_sums.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx.cuh"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 256;

// One thread per row and block; the 16 rows of a panel read 64 consecutive bytes.
__global__ void __launch_bounds__(kThreads) weight_sums_kernel(const DeviceWeight w, float* sums) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t parameters = w.panels * w.blocks * PackedLayout::kPanelRows;
  if (at >= w.taps * parameters) return;
  const int row = static_cast<int>(at % PackedLayout::kPanelRows);
  const std::int64_t tap = at / parameters, parameter = at % parameters, block = parameter / PackedLayout::kPanelRows;
  const std::int64_t p = block % w.blocks, panel = block / w.blocks;
  const std::int64_t first = (panel * w.taps + tap) * w.steps + p * w.steps_per_block, steps = w.block_steps(p);
  std::int64_t stored = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::uint32_t word = w.words[(first + step) * PackedLayout::kPanelRows + row];
    if (w.bits == 8)
      stored += ptx::add_bytes(word, 0);
    else
      stored += ptx::add_bytes(word & 0x0f0f0f0fu, ptx::add_bytes(word >> 4 & 0x0f0f0f0fu, 0));
  }
  // Padding holds code 0, stored like every code with its shift.
  const std::int64_t sum = w.bits == 8 ? stored - 128 * 4 * steps : stored - 8 * 8 * steps;
  sums[at] =
      numerics::block_weight_sum(sum, w.block_length(p), w.scales[parameter], w.offsets ? w.offsets[parameter] : 0.0f);
}

}  // namespace

void add_weight_sums(DeviceWeight& w, float* sums, cudaStream_t stream) {
  w.sums = sums;
  const std::int64_t count = weight_sum_count(w);
  if (count == 0) return;
  launch("weight_sums", weight_sums_kernel, {dim3(static_cast<unsigned>(ceil_div(count, kThreads))), dim3(kThreads)},
         stream, w, sums);
}

}  // namespace qcore
