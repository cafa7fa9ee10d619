#pragma once

#include "numerics/block_scale.h"

// One block of one row of activations: its parameters and codes, as every kernel must produce them.
namespace qcore::numerics {

constexpr int kActivationInt8 = 0, kActivationInt8Asym = 1, kActivationInt16 = 2;
constexpr int kActivationInt8Fixed = 3;  // symmetric codes with a scale that is given
constexpr int kActivationCodes = 4;      // x holds codes, of 8 or 16 bits

// `fixed` is the given scale, which has a finite inverse.
QCORE_NUMERIC BlockScale activation_scale(int mode, float lo, float hi, std::uint32_t max_magnitude_bits,
                                          float fixed = 0.0f) {
  if (mode == kActivationInt8Fixed)
    return max_magnitude_bits >= kInfinityBits ? nan_block() : BlockScale{fixed, 1.0f / fixed, 0.0f};
  if (mode == kActivationInt8Asym) return asymmetric_activation_scale(lo, hi, max_magnitude_bits, 8);
  return symmetric_scale(max_magnitude_bits, mode == kActivationInt16 ? 16 : 8);
}

QCORE_NUMERIC int activation_lowest(int mode) {
  return mode == kActivationInt8 ? -127 : mode == kActivationInt16 ? -32767 : mode == kActivationCodes ? -32768 : -128;
}
QCORE_NUMERIC int activation_highest(int mode) {
  return mode == kActivationInt16 || mode == kActivationCodes ? 32767 : 127;
}

QCORE_NUMERIC BlockScale activation_scale_of(const float* values, std::int64_t count, int mode, float fixed = 0.0f) {
  std::uint32_t magnitude = 0;
  float lo = values[0], hi = values[0];
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = magnitude_bits(values[i]);
    magnitude = bits > magnitude ? bits : magnitude;
    lo = values[i] < lo ? values[i] : lo;
    hi = values[i] > hi ? values[i] : hi;
  }
  return activation_scale(mode, lo, hi, magnitude, fixed);
}

QCORE_NUMERIC int activation_code(float value, const BlockScale& scale, int mode) {
  return encode(value, scale, activation_lowest(mode), activation_highest(mode));
}

}  // namespace qcore::numerics
