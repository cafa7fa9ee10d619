#pragma once

#include "numerics/half_bits.h"

// AWQ's 4-bit weights in the layout of its gemm kernels: a word holds 8 neighboring columns n, in the order in which
// two 16-bit masks take them out as pairs. Column n is in word n / 8.
namespace qcore::numerics {

constexpr int kAwqColumns = 8;  // of a word

// Returns the shift of column n % 8 in bits: nibbles 0, 4, 1, 5, 2, 6, 3, 7.
QCORE_NUMERIC constexpr int awq_shift(int column) { return 4 * (column / 2 + column % 2 * 4); }

QCORE_NUMERIC int awq_nibble(std::uint32_t word, int column) {
  return static_cast<int>(word >> awq_shift(column) & 15u);
}

// (u - z) * s rounded once to fp16: the product of an fp16 number and an integer below 16 is exact in fp32.
QCORE_NUMERIC std::uint16_t awq_weight(int u, int z, std::uint16_t scale) {
  return float_to_half(static_cast<float>(u - z) * half_to_float(scale));
}

// A nibble becomes fp32 as the lowest bits of 2^23, without a conversion. Zeros do too: the difference is exact.
constexpr float kAwqBias = 8388608.0f;
constexpr int kAwqBiasBits = 0x4b000000;

// The same weight as scale * (u - 8) + offset, with an offset that is exact in fp32.
constexpr int kAwqMiddle = 8;
QCORE_NUMERIC float awq_offset(int z, std::uint16_t scale) {
  return static_cast<float>(kAwqMiddle - z) * half_to_float(scale);
}

}  // namespace qcore::numerics
