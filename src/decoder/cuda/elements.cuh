#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "formats/element.h"
#include "gemm/cuda/stored_run.cuh"
#include "numerics/half_bits.h"
#include "qcore/tensor_view.h"
#include "runtime/cuda/ptx_half.cuh"

// Elements whose dtype the compiler knows. A kernel that runs for a few microseconds spends most of them on fetching
// its instructions, and the choice between dtypes at every element makes the most of them.
namespace qcore {

template <DType kDType>
struct CacheItem {
  using Type = std::uint16_t;
  static constexpr int kBytes = 2;
};
template <>
struct CacheItem<DType::f32> {
  using Type = float;
  static constexpr int kBytes = 4;
};
template <>
struct CacheItem<DType::i8> {
  using Type = std::int8_t;
  static constexpr int kBytes = 1;
};

// One element; of an int8 cache without its scale.
template <DType kDType>
__device__ __forceinline__ float widened(typename CacheItem<kDType>::Type item) {
  if constexpr (kDType == DType::f16)
    return numerics::half_to_float(item);
  else if constexpr (kDType == DType::bf16)
    return numerics::bfloat_to_float(item);
  else
    return static_cast<float>(item);
}

template <DType kDType>
__device__ __forceinline__ typename CacheItem<kDType>::Type narrowed(float value) {
  static_assert(kDType != DType::i8);
  if constexpr (kDType == DType::f32)
    return value;
  else
    return static_cast<std::uint16_t>(ptx::pack_pair<ptx::half_of(kDType)>(value, 0.0f));
}

template <DType kDType>
__device__ __forceinline__ float rounded(float value) {
  return widened<kDType>(narrowed<kDType>(value));
}

__device__ __forceinline__ float rounded(float value, DType dtype) {
  if (dtype == DType::f16) return rounded<DType::f16>(value);
  if (dtype == DType::bf16) return rounded<DType::bf16>(value);
  return value;
}

// The elements of a 32-bit word.
template <DType kDType>
constexpr int kWordItems = 4 / CacheItem<kDType>::kBytes;

template <DType kDType>
__device__ __forceinline__ void widen_word(std::uint32_t word, float (&values)[kWordItems<kDType>]) {
  if constexpr (kDType == DType::f32) {
    values[0] = numerics::bits_float(word);
  } else if constexpr (kDType == DType::i8) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = static_cast<float>(static_cast<std::int8_t>(word >> (8 * i)));
  } else {
    values[0] = widened<kDType>(static_cast<std::uint16_t>(word));
    values[1] = widened<kDType>(static_cast<std::uint16_t>(word >> 16));
  }
}

template <DType kDType>
__device__ __forceinline__ std::uint32_t narrow_word(const float* values) {
  if constexpr (kDType == DType::f32)
    return numerics::float_bits(values[0]);
  else
    return ptx::pack_pair<ptx::half_of(kDType)>(values[0], values[1]);
}

// kCount floating-point elements that lie side by side, held as they are in memory: 16 bytes, or as many as there are,
// go by one instruction.
template <DType kDType, int kCount>
class Elements {
 public:
  static constexpr int kWords = kCount / kWordItems<kDType>;
  static constexpr int kBytes = 4 * kWords;

  __device__ __forceinline__ void load(const char* from) {
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(from + 4 * i);
        words_[i] = four.x, words_[i + 1] = four.y, words_[i + 2] = four.z, words_[i + 3] = four.w;
      }
    } else if constexpr (kWords == 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      words_[0] = two.x, words_[1] = two.y;
    } else {
      static_assert(kWords == 1);
      words_[0] = *reinterpret_cast<const std::uint32_t*>(from);
    }
  }
  __device__ __forceinline__ void store(char* to) const {
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4)
        *reinterpret_cast<uint4*>(to + 4 * i) = uint4{words_[i], words_[i + 1], words_[i + 2], words_[i + 3]};
    } else if constexpr (kWords == 2) {
      *reinterpret_cast<uint2*>(to) = uint2{words_[0], words_[1]};
    } else {
      *reinterpret_cast<std::uint32_t*>(to) = words_[0];
    }
  }

  // Takes the first words of those that were loaded by other means.
  template <int kAll>
  __device__ __forceinline__ void take(const std::uint32_t (&words)[kAll]) {
    static_assert(kWords <= kAll);
#pragma unroll
    for (int i = 0; i < kWords; ++i) words_[i] = words[i];
  }

  __device__ __forceinline__ void widen(float (&values)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      float few[kWordItems<kDType>];
      widen_word<kDType>(words_[i], few);
#pragma unroll
      for (int j = 0; j < kWordItems<kDType>; ++j) values[i * kWordItems<kDType> + j] = few[j];
    }
  }
  __device__ __forceinline__ void narrow(const float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words_[i] = narrow_word<kDType>(values + i * kWordItems<kDType>);
  }
  __device__ __forceinline__ std::uint32_t magnitude() const { return largest_magnitude<kDType>(words_); }

 private:
  std::uint32_t words_[kWords];
};

}  // namespace qcore
