#pragma once

#include <cstdint>
#include <cstring>

// Every function in this folder is static and forced inline: an ordinary inline function compiled in an
// AVX-512 file could be the copy that the linker keeps for baseline code. Sanitizer builds define QCORE_INLINE as
// `inline`, because g++ takes more than twice as long to compile what is forced inline.
#if defined(QCORE_INLINE)
#elif defined(__CUDACC__)
#define QCORE_INLINE __host__ __device__ __forceinline__
#else
#define QCORE_INLINE inline __attribute__((always_inline))
#endif
#define QCORE_NUMERIC static QCORE_INLINE

namespace qcore::numerics {

QCORE_NUMERIC std::uint32_t float_bits(float x) {
  std::uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

QCORE_NUMERIC float bits_float(std::uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

// A fused multiply-add without the instruction. The product is exact in double, and so is the error of the sum. A sum
// that is not exact becomes that of its two neighbors in double whose last bit is odd: since double has more than twice
// the bits of float and two, rounding that to float is the same as rounding the exact sum once.
QCORE_NUMERIC float fma_by_double(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b), addend = static_cast<double>(c);
  const double sum = product + addend;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);
  std::uint64_t bits;
  memcpy(&bits, &sum, sizeof bits);
  // Not for an infinity or a NaN, whose error is a NaN.
  if ((error < 0.0 || error > 0.0) && !(bits & 1)) bits += (error > 0.0) == (sum > 0.0) ? 1 : -1;
  double odd;
  memcpy(&odd, &bits, sizeof odd);
  return static_cast<float>(odd);
}

// The processor that is compiled for has the instruction.
#if defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__) || defined(__riscv_flen) || defined(__VSX__)
#define QCORE_HAS_FMA
#endif

// The fmaf() of MinGW rounds twice, and so does musl's in WebAssembly, which has no rounding modes.
#if !defined(QCORE_HAS_FMA) && (defined(__MINGW32__) || defined(__wasm__))
#define QCORE_FMA_BY_DOUBLE
#endif

// One rounding, on every backend: contraction is switched off elsewhere, so this is the only fma.
QCORE_NUMERIC float fma_once(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(QCORE_FMA_BY_DOUBLE)
  return fma_by_double(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

constexpr std::uint32_t kInfinityBits = 0x7f800000u;
constexpr std::uint32_t kNaNBits = 0x7fc00000u;
constexpr float kFloatMax = 3.40282346638528859812e38f;

QCORE_NUMERIC bool is_finite(float x) { return (float_bits(x) & kInfinityBits) != kInfinityBits; }

// Rounds half to even, for |x| < 2^22: behind 1.5 * 2^23 there are no fraction bits, and the lowest bits of that float
// count from it.
QCORE_NUMERIC int round_to_int_small(float x) {
#if defined(__CUDA_ARCH__)
  const float shifted = __fadd_rn(x, 12582912.0f);
#else
  const float shifted = x + 12582912.0f;
#endif
  return static_cast<int>(float_bits(shifted) - 0x4b400000u);
}

// Ints within +-2^22 as the lowest bits of floats behind 1.5 * 2^23: GPUs convert numbers at a fraction of the rate at
// which they add them.
constexpr std::uint32_t kSmallIntBits = 0x4b400000u;

// Rounds down, for |x| < 2^22.
QCORE_NUMERIC std::uint32_t floor_to_small_int_bits(float x) {
#if defined(__CUDA_ARCH__)
  return float_bits(__fadd_rd(x, 12582912.0f));
#else
  return float_bits(__builtin_floorf(x) + 12582912.0f);
#endif
}

QCORE_NUMERIC float small_int_bits_to_float(std::uint32_t bits) { return bits_float(bits) - 12582912.0f; }

}  // namespace qcore::numerics
