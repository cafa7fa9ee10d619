#pragma once

#include "numerics/portable.h"

// fp16 and bf16 as integers, so that a CPU without F16C and a GPU give the same bits. GPUs have instructions for fp16,
// which differ in the payload of NaNs alone.
namespace qcore::numerics {

QCORE_NUMERIC float half_to_float(std::uint16_t h) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
#else
  const std::uint32_t sign = (h & 0x8000u) << 16;
  const std::uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_float(sign | kInfinityBits | ((magnitude & 0x3ffu) << 13));
  // Shift exponent and fraction into place, then rebias by a multiplication: exact, subnormals included.
  const float scaled = bits_float(magnitude << 13) * bits_float((254u - 15u) << 23);
  return bits_float(sign | float_bits(scaled));
#endif
}

// Rounds half to even; overflows to infinity; a NaN stays a (quiet) NaN with its upper payload bits.
QCORE_NUMERIC std::uint16_t float_to_half(float x) {
#if defined(__CUDA_ARCH__)
  std::uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
#else
  const std::uint32_t u = float_bits(x);
  const std::uint16_t sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > kInfinityBits) return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Below the smallest normal fp16: adding 0.5 aligns the ulp with 2^-24, and rounds half to even.
    const float aligned = bits_float(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (float_bits(aligned) - 0x3f000000u));
  }
  magnitude += 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((magnitude - (112u << 23)) >> 13));
#endif
}

QCORE_NUMERIC float bfloat_to_float(std::uint16_t b) { return bits_float(static_cast<std::uint32_t>(b) << 16); }

// Rounds half to even; a NaN stays a (quiet) NaN.
QCORE_NUMERIC std::uint16_t float_to_bfloat(float x) {
  const std::uint32_t u = float_bits(x);
  if ((u & 0x7fffffffu) > kInfinityBits) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

}  // namespace qcore::numerics
