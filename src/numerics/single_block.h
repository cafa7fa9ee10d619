#pragma once

#include "numerics/activation_block.h"

// Blocks of one activation, as a depthwise convolution has them: the code of a symmetric one is the largest, with x's
// sign, unless it is 0 with the scale. So the scale may have the sign, and the code be the same for all: products of
// two factors with their signs exchanged, or both turned, have the same bits.
namespace qcore::numerics {

// Smallest scale whose reciprocal is finite; symmetric_scale() uses the same bound.
constexpr std::uint32_t kSmallestScaleBits = 0x00200001u;  // the float after 2^-128

// x / divisor with one rounding, as IEEE 754 has it, for 127 and 32767 with the rounded reciprocal, finite x from
// kSmallestExactBits on, and zeros (which may change their sign): the remainder is exact, and test_single_block.cpp
// compares all mantissas. Lanes is a vector or numerics/lanes.h's one lane.
constexpr std::uint32_t kSmallestExactBits = (127u - 90u) << 23;  // 2^-90
template <class Lanes, class F>
QCORE_NUMERIC F quotient(F x, F negative_divisor, F reciprocal) {
  const F q = Lanes::mul(x, reciprocal);
  return Lanes::fma(Lanes::fma(q, negative_divisor, x), reciprocal, q);
}

QCORE_NUMERIC float signed_scale(float x, int mode) {
  const float scale = x / static_cast<float>(activation_highest(mode));
  const float used = magnitude_bits(scale) >= kSmallestScaleBits ? scale : 0.0f;
  return magnitude_bits(x) >= kInfinityBits ? bits_float(kNaNBits) : used;
}

// With int8_asym such a block is a constant: scale 1, code 0, and this offset.
QCORE_NUMERIC float constant_offset(float x) {
  return magnitude_bits(x) >= kInfinityBits ? bits_float(kNaNBits) : x + 0.0f;
}

}  // namespace qcore::numerics
