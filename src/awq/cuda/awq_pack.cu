#include <algorithm>

#include "awq/awq_arrays.h"
#include "awq/cuda/kernels.h"
#include "formats/packed_layout.h"
#include "runtime/cuda/cuda_check.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 128;
constexpr int kStepRows = 8, kColumns = numerics::kAwqColumns;
constexpr int kPanelWords = PackedLayout::kPanelRows / kColumns;
constexpr std::int64_t kMaxGridRows = 65535;

struct Arguments {
  AwqWeight weight;
  PackedLayout layout;
  std::int64_t steps;  // of a block
  std::uint8_t* codes;
  float *scales, *offsets;
};

// Byte k % 4 of a column's word in a step holds row k low and row k + 4 high.
__device__ __forceinline__ std::uint32_t step_word(const std::uint32_t (&words)[kStepRows], int column) {
  const int shift = numerics::awq_shift(column);
  std::uint32_t packed = 0;
#pragma unroll
  for (int k = 0; k < kStepRows; ++k) packed |= (words[k] >> shift & 15u) << (8 * (k % 4) + k / 4 * 4);
  return packed;
}

// A thread takes one word of the 8 rows of a step. Words of the last panel that the weight does not have, and rows
// behind the end of a block, are padding.
__global__ void __launch_bounds__(kThreads) awq_pack_codes_kernel(const __grid_constant__ Arguments a) {
  constexpr std::uint32_t kPadding = 0x88888888u;
  const std::int64_t word = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (word >= a.layout.panels() * kPanelWords) return;
  const bool is_there = word * kColumns < a.weight.n;
  for (std::int64_t step = blockIdx.y; step < a.layout.steps(); step += gridDim.y) {
    const std::int64_t block = step / a.steps, within = step % a.steps * kStepRows;
    std::uint32_t words[kStepRows];
#pragma unroll
    for (int k = 0; k < kStepRows; ++k) {
      const std::int64_t row = block * a.layout.block_size + within + k;
      const bool is_valid = is_there && within + k < a.layout.block_size;
      words[k] = is_valid ? a.weight.qweight[row * a.weight.qweight_row + word * a.weight.qweight_column] : kPadding;
    }
    uint4 low, high;
    low.x = step_word(words, 0), low.y = step_word(words, 1), low.z = step_word(words, 2), low.w = step_word(words, 3);
    high.x = step_word(words, 4), high.y = step_word(words, 5), high.z = step_word(words, 6);
    high.w = step_word(words, 7);
    auto* to = reinterpret_cast<uint4*>(a.codes + word / kPanelWords * a.layout.panel_bytes() +
                                        step * PackedLayout::kStepBytes + word % kPanelWords * (4 * kColumns));
    to[0] = low;
    to[1] = high;
  }
}

__global__ void __launch_bounds__(kThreads) awq_pack_parameters_kernel(const __grid_constant__ Arguments a) {
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= a.layout.panels() * PackedLayout::kPanelRows) return;
  for (std::int64_t p = blockIdx.y; p < a.layout.blocks(); p += gridDim.y) {
    const std::int64_t at = a.layout.parameter_index(n, p);
    const bool is_there = n < a.weight.n;
    const std::uint16_t scale = is_there ? awq_scale(a.weight, p, n) : std::uint16_t{0};
    a.scales[at] = numerics::half_to_float(scale);
    a.offsets[at] = is_there ? numerics::awq_offset(awq_zero(a.weight, p, n), scale) : 0.0f;
  }
}

}  // namespace

void pack_awq_on_cuda(const AwqWeight& weight, const PackedWeight& packed) {
  DeviceGuard guard(weight.device.index);
  const auto stream = static_cast<cudaStream_t>(weight.stream);
  const PackedLayout& layout = packed.layout;
  const Arguments arguments{weight,
                            layout,
                            layout.block_steps(0),
                            const_cast<std::uint8_t*>(packed.codes),
                            static_cast<float*>(const_cast<void*>(packed.scales.data)),
                            static_cast<float*>(const_cast<void*>(packed.offsets.data))};
  const auto shape = [](std::int64_t columns, std::int64_t rows) {
    return LaunchShape{
        dim3(static_cast<unsigned>(ceil_div(columns, kThreads)), static_cast<unsigned>(std::min(kMaxGridRows, rows))),
        dim3(kThreads)};
  };
  launch("awq_pack_codes", awq_pack_codes_kernel, shape(layout.panels() * kPanelWords, layout.steps()), stream,
         arguments);
  launch("awq_pack_parameters", awq_pack_parameters_kernel,
         shape(layout.panels() * PackedLayout::kPanelRows, layout.blocks()), stream, arguments);
}

void wait_for_awq_pack(const AwqWeight& weight) {
  DeviceGuard guard(weight.device.index);
  QCORE_CHECK_CUDA(cudaStreamSynchronize(static_cast<cudaStream_t>(weight.stream)));
}

}  // namespace qcore
