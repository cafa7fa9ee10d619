#pragma once

#include "numerics/half_bits.h"

// 16-bit floats for the meanings of instructions in runtime/, which does not include numerics.
namespace cuda_host {

inline float half_value(std::uint32_t bits, bool bf16) {
  const auto half = static_cast<std::uint16_t>(bits);
  return bf16 ? qcore::numerics::bfloat_to_float(half) : qcore::numerics::half_to_float(half);
}

inline std::uint16_t half_bits(float value, bool bf16) {
  return bf16 ? qcore::numerics::float_to_bfloat(value) : qcore::numerics::float_to_half(value);
}

// a * b + c of both halves of a word. For operands whose product is exact in fp32, and so is its sum with c.
inline std::uint32_t fma_halves(std::uint32_t a, std::uint32_t b, std::uint32_t c, bool bf16) {
  std::uint32_t d = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const auto value = [&](std::uint32_t word) { return half_value(word >> shift, bf16); };
    d |= std::uint32_t{half_bits(value(a) * value(b) + value(c), bf16)} << shift;
  }
  return d;
}

}  // namespace cuda_host
