#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "formats/element.h"
#include "lut/problem.h"
#include "numerics/half_bits.h"
#include "runtime/cuda/ptx_half.cuh"

// 16 bytes of an array as floats, and back.
namespace qcore {

template <DType kDType>
struct Vector {
  static constexpr int kCount = kDType == DType::f32 ? 4 : 8;

  __device__ __forceinline__ static void unpack(const uint4& from, float (&to)[kCount]) {
    const std::uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kDType == DType::f32) {
        to[i] = numerics::bits_float(words[i]);
      } else if constexpr (kDType == DType::f16) {
        to[2 * i] = numerics::half_to_float(static_cast<std::uint16_t>(words[i]));
        to[2 * i + 1] = numerics::half_to_float(static_cast<std::uint16_t>(words[i] >> 16));
      } else {
        to[2 * i] = numerics::bits_float(words[i] << 16);
        to[2 * i + 1] = numerics::bits_float(words[i] & 0xffff0000u);
      }
    }
  }

  __device__ __forceinline__ static uint4 pack(const float (&from)[kCount]) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kDType == DType::f32)
        words[i] = numerics::float_bits(from[i]);
      else
        words[i] = ptx::pack_pair<ptx::half_of(kDType)>(from[2 * i], from[2 * i + 1]);
    }
    uint4 to;
    to.x = words[0], to.y = words[1], to.z = words[2], to.w = words[3];
    return to;
  }
};

// Elements, or rows, that a launch counts in 32 bits: dividing those takes a fraction of the time and registers.
constexpr std::int64_t kMaxCounted = std::int64_t{1} << 31;

// Returns what offsets_at() does, on the device.
__device__ __forceinline__ LutOffsets device_offsets(const LutProblem& axes, std::uint32_t index) {
  LutOffsets at;
#pragma unroll 1
  for (int axis = axes.rank - 1; axis >= 0; --axis) {
    const auto extent = static_cast<std::uint32_t>(axes.shape[axis]);
    const std::uint32_t outer = axis > 0 ? index / extent : 0, i = index - outer * extent;
    at.x += i * axes.x_strides[axis];
    at.y += i * axes.y_strides[axis];
    index = outer;
  }
  return at;
}

// Runs function(piece) on parts of the axes with at most `most` elements each.
template <class Function>
void for_pieces(const LutProblem& axes, std::int64_t most, const Function& function) {
  if (axes.size() <= most) return function(axes);
  const auto axis = static_cast<int>(std::max_element(axes.shape, axes.shape + axes.rank) - axes.shape);
  LutProblem first = axes, second = axes;
  first.shape[axis] /= 2;
  second.shape[axis] -= first.shape[axis];
  second.x = static_cast<const char*>(axes.x) + first.shape[axis] * axes.x_strides[axis] * item_size(axes.x_dtype);
  second.y = static_cast<char*>(axes.y) + first.shape[axis] * axes.y_strides[axis] * item_size(axes.y_dtype);
  for_pieces(first, most, function);
  for_pieces(second, most, function);
}

inline bool is_aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

}  // namespace qcore
