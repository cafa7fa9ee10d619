#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "formats/row_view.h"
#include "numerics/block_scale.h"
#include "numerics/half_bits.h"
#include "runtime/cuda/ptx_convert.cuh"

// Runs of neighboring elements that a thread loads by 16 bytes.
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

constexpr int kRun = 16;  // elements, and the codes that are stored together

template <DType dtype>
struct StoredRun {
  static constexpr int kUnits = dtype == DType::f32 ? 4 : dtype == DType::i8 ? 1 : 2;
  uint4 units[kUnits];

  __device__ __forceinline__ void load(const void* x, std::int64_t at) {
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const char*>(x) + at * (kUnits * 16 / kRun));
#pragma unroll
    for (int i = 0; i < kUnits; ++i) units[i] = from[i];
  }
  __device__ __forceinline__ void widen(float (&values)[kRun]) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::uint32_t words[] = {units[i].x, units[i].y, units[i].z, units[i].w};
#pragma unroll
      for (int j = 0; j < kRun / kUnits; ++j) {
        float& value = values[i * (kRun / kUnits) + j];
        if constexpr (dtype == DType::f32) {
          value = numerics::bits_float(words[j]);
        } else if constexpr (dtype == DType::i8) {
          value = static_cast<float>(static_cast<std::int8_t>(words[j / 4] >> (8 * (j % 4))));
        } else {
          const auto half = static_cast<std::uint16_t>(words[j / 2] >> (16 * (j % 2)));
          value = dtype == DType::f16 ? numerics::half_to_float(half) : numerics::bfloat_to_float(half);
        }
      }
    }
  }
  __device__ __forceinline__ std::uint32_t magnitude() const {
    std::uint32_t largest = 0;
#pragma unroll
    for (const uint4& unit : units) {
      const std::uint32_t of_unit = largest_magnitude<dtype>({unit.x, unit.y, unit.z, unit.w});
      largest = of_unit > largest ? of_unit : largest;
    }
    return largest;
  }
};

// Loads the runs that start at `at`, at + step .. of x, the first `count` of them; the others become zeros. All are on
// their way before the first one is looked at. Returns the bits of their largest magnitude, unless x holds codes.
template <DType dtype, int kCount>
__device__ __forceinline__ std::uint32_t load_runs_as(const void* x, std::int64_t at, std::int64_t step, int count,
                                                      float (&values)[kCount][kRun]) {
  StoredRun<dtype> stored[kCount] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (i < count) stored[i].load(x, at + i * step);
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    stored[i].widen(values[i]);
    const std::uint32_t magnitude = stored[i].magnitude();
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}
template <int kCount>
__device__ __forceinline__ std::uint32_t load_runs(const RowView& x, std::int64_t at, std::int64_t step, int count,
                                                   float (&values)[kCount][kRun]) {
  if (x.dtype == DType::f32) return load_runs_as<DType::f32>(x.data, at, step, count, values);
  if (x.dtype == DType::f16) return load_runs_as<DType::f16>(x.data, at, step, count, values);
  if (x.dtype == DType::i8) return load_runs_as<DType::i8>(x.data, at, step, count, values);
  return load_runs_as<DType::bf16>(x.data, at, step, count, values);
}

}  // namespace qcore
