#pragma once

#include <cstdint>

#include "numerics/portable.h"

// Floats of 8 bits, but for their NaNs (255 of e8m0, 127 and 255 of e4m3), which no weight has, that scales are stored
// in, by the OCP's definitions: Microscaling Formats 1.0 (e8m0) and 8-bit Floating Point 1.0 (e4m3).
namespace qcore::numerics {

// 2^(e - 127).
QCORE_NUMERIC float e8m0_to_float(std::uint8_t e) {
  return bits_float(e ? static_cast<std::uint32_t>(e) << 23 : 1u << 22);  // 2^-127 is subnormal
}

// A sign, 4 bits of exponent with the bias 7, 3 of fraction; there are no infinities.
QCORE_NUMERIC float e4m3_to_float(std::uint8_t x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x & 0x80u) << 24, magnitude = x & 0x7fu;
  // Exponent and fraction in place, then rebiased by a multiplication: exact, subnormals included.
  const float scaled = bits_float(magnitude << 20) * bits_float((254u - 7u) << 23);
  return bits_float(sign | float_bits(scaled));
}

}  // namespace qcore::numerics
