#pragma once

#include <math.h>

#include "numerics/portable.h"

// Integers with a power-of-two scale: real value = (code - zero_point) * 2^-exponent.
namespace qcore::numerics {

enum class ShiftRounding : std::uint8_t { half_away, half_even };

constexpr std::int64_t kInt64Max = 0x7fffffffffffffff;

QCORE_NUMERIC std::int64_t shift_left_saturating(std::int64_t v, int bits) {
  if (v == 0 || bits == 0) return v;
  if (bits > 62 || v > (kInt64Max >> bits)) return v > 0 ? kInt64Max : -kInt64Max - 1;
  if (v < -(kInt64Max >> bits)) return -kInt64Max - 1;
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(v) << bits);
}

// v * 2^-bits, rounded: half away from zero, or half to even. bits <= 0 shifts to the left and saturates; bits <= 62.
template <ShiftRounding kRounding>
QCORE_NUMERIC std::int64_t rounding_shift(std::int64_t v, int bits) {
  if (bits <= 0) return shift_left_saturating(v, -bits);
  static_assert((-1 >> 1) == -1, "right shifts of negative numbers keep the sign");
  const std::int64_t half = std::int64_t{1} << (bits - 1);
  if (kRounding == ShiftRounding::half_even) {
    const std::int64_t floor = v >> bits;
    const std::int64_t rest = v - static_cast<std::int64_t>(static_cast<std::uint64_t>(floor) << bits);
    return floor + (rest > half || (rest == half && (floor & 1)));
  }
  // Half away from zero: of a negative number, one less than half is added, so that -half itself goes down.
  return (v + half - (v < 0)) >> bits;
}

// The number that a code less its zero point stands for; `unit` is 2^-exponent.
QCORE_NUMERIC float fixed_value(std::int32_t centered, float unit) { return static_cast<float>(centered) * unit; }

// The code less its zero point that is nearest to x, half to even, within [lo, hi]; 0 for a NaN. `per_unit` is
// 2^exponent: a product with it is exact, or so small that it rounds to 0 anyway.
QCORE_NUMERIC std::int32_t fixed_code(float x, float per_unit, std::int32_t lo, std::int32_t hi) {
  const float scaled = x * per_unit, low = static_cast<float>(lo), high = static_cast<float>(hi);
  const float kept = scaled < low ? low : scaled > high ? high : scaled;
  return kept == kept ? static_cast<std::int32_t>(rintf(kept)) : 0;
}

QCORE_NUMERIC std::int64_t clamp_code(std::int64_t v, std::int64_t lo, std::int64_t hi) {
  v = v < lo ? lo : v;
  return v > hi ? hi : v;
}

}  // namespace qcore::numerics
