#include "formats/element.h"
#include "linear/quantize_activations.cuh"
#include "numerics/activation_block.h"
#include "runtime/cuda_launch.h"
#include "runtime/cuda_warp.cuh"
#include "runtime/memory.h"

namespace qcore {
namespace {

using numerics::BlockScale;

constexpr int kWarps = 8;

template <class Code>
struct Arguments {
  RowView x;
  std::int64_t first_row, k, block_size;
  int mode;
  QuantizedRows<Code> out;
};

// A block's largest 8-bit sum fits in int32 wherever its products do; 16-bit codes may exceed it.
template <class Code>
struct SumOf {
  using Type = std::int32_t;
};
template <>
struct SumOf<std::int16_t> {
  using Type = long long;
};

// The block's parameters, the same in every lane.
template <class Code>
__device__ BlockScale block_scale(const Arguments<Code>& a, std::int64_t begin, std::int64_t length, int lane) {
  std::uint32_t magnitude = 0;
  float lo = numerics::kFloatMax, hi = -numerics::kFloatMax;
  for (std::int64_t i = lane; i < length; i += kWarpSize) {
    const float value = load_float(a.x.data, a.x.dtype, begin + i * a.x.column_stride);
    const std::uint32_t bits = numerics::magnitude_bits(value);
    magnitude = bits > magnitude ? bits : magnitude;
    lo = value < lo ? value : lo;
    hi = value > hi ? value : hi;
  }
  magnitude = warp_max(magnitude);
  if (a.mode == numerics::kActivationInt8Asym) {
    lo = warp_min(lo);
    hi = warp_max(hi);
  }
  return numerics::activation_scale(a.mode, lo, hi, magnitude);
}

// One warp per row and block. The second pass over the values finds them in the L1 cache.
template <class Code>
__global__ void __launch_bounds__(kWarps* kWarpSize) quantize_activations_kernel(const Arguments<Code> a) {
  using Sum = typename SumOf<Code>::Type;
  const QuantizedRows<Code>& out = a.out;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t tasks = out.rows * out.blocks, stride = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp; task < tasks; task += stride) {
    const std::int64_t row = task / out.blocks, p = task % out.blocks, first_k = p * a.block_size;
    const std::int64_t length = a.k - first_k < a.block_size ? a.k - first_k : a.block_size;
    const std::int64_t begin = a.x.row_offset(a.first_row + row) + first_k * a.x.column_stride;
    const BlockScale scale = block_scale(a, begin, length, lane);

    Code* codes = out.codes + (row * out.blocks + p) * out.padded_block;
    Sum sum = 0;
    for (std::int64_t i = lane; i < out.padded_block; i += kWarpSize) {
      int code = 0;
      if (i < length) {
        const float value = load_float(a.x.data, a.x.dtype, begin + i * a.x.column_stride);
        code = numerics::activation_code(value, scale, a.mode);
      }
      codes[i] = static_cast<Code>(code);
      sum += code;
    }
    if (out.scaled_sums || out.terms) sum = warp_sum(sum);
    if (lane == 0) {
      const std::int64_t at = p * out.rows + row;
      if (out.terms) {
        out.terms[at] = {scale.scale, static_cast<std::int32_t>(-out.zero_code * sum),
                         scale.scale * static_cast<float>(sum), scale.offset};
        continue;
      }
      out.scales[at] = scale.scale;
      if (out.scaled_sums) out.scaled_sums[at] = scale.scale * static_cast<float>(sum);
      if (out.offsets) out.offsets[at] = scale.offset;
    }
  }
}

}  // namespace

template <class Code>
void quantize_activations(const RowView& x, std::int64_t first_row, std::int64_t k, std::int64_t block_size,
                          Compute compute, const QuantizedRows<Code>& out, cudaStream_t stream) {
  const std::int64_t thread_blocks = ceil_div(out.rows * out.blocks, kWarps);
  if (thread_blocks == 0) return;
  constexpr std::int64_t kMostThreadBlocks = 1 << 20;
  const Arguments<Code> arguments{
      x, first_row, k, block_size, static_cast<int>(compute) - static_cast<int>(Compute::int8), out};
  launch("quantize_activations", quantize_activations_kernel<Code>,
         {dim3(static_cast<unsigned>(thread_blocks < kMostThreadBlocks ? thread_blocks : kMostThreadBlocks)),
          dim3(kWarps * kWarpSize)},
         stream, arguments);
}

template void quantize_activations(const RowView&, std::int64_t, std::int64_t, std::int64_t, Compute,
                                   const QuantizedRows<std::int8_t>&, cudaStream_t);
template void quantize_activations(const RowView&, std::int64_t, std::int64_t, std::int64_t, Compute,
                                   const QuantizedRows<std::int16_t>&, cudaStream_t);

}  // namespace qcore
