#pragma once

#include "numerics/portable.h"
#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_half.cuh"

// Stored codes to pairs of 16-bit floats, without a conversion: as the lowest bits of a power of two they add
// themselves to it. All values are small integers, so every step is exact.
namespace qcore::sm80_float_mma {

__device__ constexpr std::uint32_t both(std::uint32_t half) { return half * 0x00010001u; }

template <ptx::Half kHalf, int kBits>
struct Decoder;

// A column's stored code for the weight 0, or the nearest there is.
template <int kBits>
__device__ __forceinline__ std::uint32_t nearest_zero(float scale, float offset) {
  constexpr float kTwo23 = 8388608.0f, kMax = (1 << kBits) - 1, kZero = 1 << (kBits - 1);
  float code = kZero - ptx::quotient(offset, scale);
  code = code > 0.0f ? code : 0.0f;  // a NaN, too
  code = code < kMax ? code : kMax;
  return numerics::float_bits(code + kTwo23) & 0xffu;
}

// The same for the offset scale * (zero - code) with an integer code in range, in fewer instructions. Scales are 0,
// when any number below 2^8 will do, or far from the ends of fp32's range.
template <int kBits>
__device__ __forceinline__ std::uint32_t zero_point(float scale, float offset) {
  constexpr float kShifted = 8388608.0f + (1 << (kBits - 1));  // the code is the lowest bits of what comes out
  return numerics::float_bits(numerics::fma_once(-offset, ptx::reciprocal(scale), kShifted)) & 0xffu;
}

// Returns the rest of a column's offset, whose codes count from nearest_zero().
template <int kBits>
__device__ __forceinline__ float rest_of_offset(float scale, float offset) {
  const int code = static_cast<int>(nearest_zero<kBits>(scale, offset)) - (1 << (kBits - 1));
  return numerics::fma_once(scale, static_cast<float>(code), offset);
}

// Shift of a column's codes, as the addends of the last step; `code` is the stored code that becomes 0.
// decode() makes eight neighbors along k of a column out of its bytes, pairs[i] k 2*i and 2*i + 1; unless `kShifted`,
// the shift is that of signed codes. pair() makes two neighbors out of words whose halves hold a code each in their
// lowest bits, whatever is above; pair_of_bytes() of 4 bits out of words whose halves are a code and, above it,
// kUpperByte.
template <>
struct Decoder<ptx::Half::f16, 4> {
  struct Shift {
    std::uint32_t low, high;
  };
  __device__ static constexpr Shift shift(std::uint32_t code) {
    return {both(0xe400u | code), both(0xd400u | code << 4)};  // -(1024 + code), -(64 + code)
  }
  __device__ __forceinline__ static std::uint32_t pair(std::uint32_t codes, const Shift& shift) {
    return pair_of_bytes(ptx::and_or(codes, both(0x000fu), both(0x6400u)), shift);
  }
  static constexpr std::uint32_t kUpperByte = 0x64;
  __device__ __forceinline__ static std::uint32_t pair_of_bytes(std::uint32_t sums, const Shift& shift) {
    return ptx::fma_pair<ptx::Half::f16>(sums, both(0x3c00u), shift.low);
  }
  template <bool kShifted>
  __device__ __forceinline__ static void decode(std::uint32_t (&pairs)[4], std::uint32_t word, std::uint32_t,
                                                const Shift& shift) {
    constexpr std::uint32_t k1024 = both(0x6400u), kOne = both(0x3c00u), kSixteenth = both(0x2c00u);
    const std::uint32_t first = ptx::pick_bytes<0x1100>(word, 0), second = ptx::pick_bytes<0x3322>(word, 0);
    pairs[0] = ptx::fma_pair<ptx::Half::f16>(ptx::and_or(first, both(0x000fu), k1024), kOne, shift.low);
    pairs[1] = ptx::fma_pair<ptx::Half::f16>(ptx::and_or(second, both(0x000fu), k1024), kOne, shift.low);
    pairs[2] = ptx::fma_pair<ptx::Half::f16>(ptx::and_or(first, both(0x00f0u), k1024), kSixteenth, shift.high);
    pairs[3] = ptx::fma_pair<ptx::Half::f16>(ptx::and_or(second, both(0x00f0u), k1024), kSixteenth, shift.high);
  }
};

template <>
struct Decoder<ptx::Half::bf16, 4> {
  using Shift = std::uint32_t;
  __device__ static constexpr Shift shift(std::uint32_t code) { return both(0xc300u | code); }  // -(128 + code)
  __device__ __forceinline__ static std::uint32_t pair(std::uint32_t codes, Shift shift) {
    return pair_of_bytes(ptx::and_or(codes, both(0x000fu), both(0x4300u)), shift);
  }
  static constexpr std::uint32_t kUpperByte = 0x43;
  __device__ __forceinline__ static std::uint32_t pair_of_bytes(std::uint32_t sums, Shift shift) {
    return ptx::fma_pair<ptx::Half::bf16>(sums, both(0x3f80u), shift);
  }
  template <bool kShifted>
  __device__ __forceinline__ static void decode(std::uint32_t (&pairs)[4], std::uint32_t word, std::uint32_t,
                                                Shift shift) {
    constexpr std::uint32_t k128 = both(0x4300u), kOne = both(0x3f80u), kMask = both(0x000fu);
    const std::uint32_t first = ptx::pick_bytes<0x1100>(word, 0), second = ptx::pick_bytes<0x3322>(word, 0);
    pairs[0] = ptx::fma_pair<ptx::Half::bf16>(ptx::and_or(first, kMask, k128), kOne, shift);
    pairs[1] = ptx::fma_pair<ptx::Half::bf16>(ptx::and_or(second, kMask, k128), kOne, shift);
    pairs[2] = ptx::fma_pair<ptx::Half::bf16>(ptx::and_or(first >> 4, kMask, k128), kOne, shift);
    pairs[3] = ptx::fma_pair<ptx::Half::bf16>(ptx::and_or(second >> 4, kMask, k128), kOne, shift);
  }
};

template <>
struct Decoder<ptx::Half::f16, 8> {
  using Shift = std::uint32_t;
  __device__ static constexpr Shift shift(std::uint32_t code) { return both(0xe400u | code); }  // -(1024 + code)
  __device__ __forceinline__ static std::uint32_t pair(std::uint32_t codes, Shift shift) {
    return ptx::fma_pair<ptx::Half::f16>(ptx::and_or(codes, both(0x00ffu), both(0x6400u)), both(0x3c00u), shift);
  }
  template <bool kShifted>
  __device__ __forceinline__ static void decode(std::uint32_t (&pairs)[4], std::uint32_t first, std::uint32_t second,
                                                Shift shift) {
    constexpr std::uint32_t kOne = both(0x3c00u);
    pairs[0] = ptx::fma_pair<ptx::Half::f16>(ptx::pick_bytes<0x4140>(first, 0x64), kOne, shift);
    pairs[1] = ptx::fma_pair<ptx::Half::f16>(ptx::pick_bytes<0x4342>(first, 0x64), kOne, shift);
    pairs[2] = ptx::fma_pair<ptx::Half::f16>(ptx::pick_bytes<0x4140>(second, 0x64), kOne, shift);
    pairs[3] = ptx::fma_pair<ptx::Half::f16>(ptx::pick_bytes<0x4342>(second, 0x64), kOne, shift);
  }
};

// bf16 has seven bits behind the first one. The code's top bit chooses between two powers of two to subtract, which
// differ in one bit; that makes signed codes, and another step those that count from elsewhere.
template <>
struct Decoder<ptx::Half::bf16, 8> {
  using Shift = std::uint32_t;
  static constexpr std::uint32_t kOne = both(0x3f80u);

  __device__ __forceinline__ static std::uint32_t signed_codes(std::uint32_t bytes) {
    return ptx::fma_pair<ptx::Half::bf16>(ptx::and_or(bytes, both(0x007fu), both(0x4300u)), kOne,
                                          (bytes & both(0x0080u)) ^ both(0xc380u));
  }
  __device__ __forceinline__ static Shift shift(std::uint32_t code) {  // 128 - code
    return ptx::fma_pair<ptx::Half::bf16>(signed_codes(both(code)), both(0xbf80u), 0);
  }
  template <bool kShifted = true>
  __device__ __forceinline__ static std::uint32_t pair(std::uint32_t bytes, Shift shift) {
    const std::uint32_t codes = signed_codes(bytes);
    return kShifted ? ptx::fma_pair<ptx::Half::bf16>(codes, kOne, shift) : codes;
  }
  template <bool kShifted>
  __device__ __forceinline__ static void decode(std::uint32_t (&pairs)[4], std::uint32_t first, std::uint32_t second,
                                                Shift shift) {
    pairs[0] = pair<kShifted>(ptx::pick_bytes<0x4140>(first, 0), shift);
    pairs[1] = pair<kShifted>(ptx::pick_bytes<0x4342>(first, 0), shift);
    pairs[2] = pair<kShifted>(ptx::pick_bytes<0x4140>(second, 0), shift);
    pairs[3] = pair<kShifted>(ptx::pick_bytes<0x4342>(second, 0), shift);
  }
};

}  // namespace qcore::sm80_float_mma
