#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "numerics/block_scale.h"
#include "qcore/tensor_view.h"
#include "runtime/cuda/ptx_convert.cuh"

namespace qcore {

// Returns the bits of the largest magnitude of the elements in some words, as fp32; more than those of infinity if one
// is a NaN. Elements of 16 bits are compared as they are, two at a time: as integers they have the order of their
// values. For codes it returns 0.
template <DType kDType, int kWords>
__device__ __forceinline__ std::uint32_t largest_magnitude(const std::uint32_t (&words)[kWords]) {
  std::uint32_t largest = 0;
  if constexpr (kDType == DType::f32) {
#pragma unroll
    for (const std::uint32_t word : words) {
      const std::uint32_t bits = numerics::magnitude_bits(numerics::bits_float(word));
      largest = bits > largest ? bits : largest;
    }
  } else if constexpr (kDType == DType::f16 || kDType == DType::bf16) {
#pragma unroll
    for (const std::uint32_t word : words) largest = ptx::largest_halves(largest, word & 0x7fff7fffu);
    const std::uint32_t low = largest & 0xffffu, high = largest >> 16;
    const auto half = static_cast<std::uint16_t>(low > high ? low : high);
    largest = numerics::magnitude_bits(kDType == DType::f16 ? numerics::half_to_float(half)
                                                            : numerics::bfloat_to_float(half));
  }
  return largest;
}

}  // namespace qcore
