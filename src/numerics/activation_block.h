#pragma once

#include "numerics/block_scale.h"

// One block of one row of activations: its parameters and codes, as every kernel must produce them.
namespace qcore::numerics {

constexpr int kActivationInt8 = 0, kActivationInt8Asym = 1, kActivationInt16 = 2;

QCORE_NUMERIC BlockScale activation_scale(int mode, float lo, float hi, std::uint32_t max_magnitude_bits) {
  if (mode == kActivationInt8Asym) return asymmetric_activation_scale(lo, hi, max_magnitude_bits, 8);
  return symmetric_scale(max_magnitude_bits, mode == kActivationInt16 ? 16 : 8);
}

QCORE_NUMERIC int activation_lowest(int mode) {
  return mode == kActivationInt8Asym ? -128 : mode == kActivationInt16 ? -32767 : -127;
}
QCORE_NUMERIC int activation_highest(int mode) { return mode == kActivationInt16 ? 32767 : 127; }

QCORE_NUMERIC BlockScale activation_scale_of(const float* values, std::int64_t count, int mode) {
  std::uint32_t magnitude = 0;
  float lo = values[0], hi = values[0];
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = magnitude_bits(values[i]);
    magnitude = bits > magnitude ? bits : magnitude;
    lo = values[i] < lo ? values[i] : lo;
    hi = values[i] > hi ? values[i] : hi;
  }
  return activation_scale(mode, lo, hi, magnitude);
}

QCORE_NUMERIC int activation_code(float value, const BlockScale& scale, int mode) {
  return encode(value, scale, activation_lowest(mode), activation_highest(mode));
}

}  // namespace qcore::numerics
