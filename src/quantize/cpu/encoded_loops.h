#pragma once

#include <cstdint>
#include <cstring>

#include "numerics/portable.h"

// Loops over the values of a block in an encoding: the definition, and in encoded_error_lanes() the same by an
// instruction set's vectors, with the same bits: sums are in the order that is written here.
namespace qcore {

constexpr int kEncodedLanes = 8;                   // values side by side
constexpr std::uint32_t kRoundBits = 0x4b400000u;  // of 1.5 * 2^23, whose sum with a float is a whole number

// Finds the integer q of an encoding that is nearest to a number.
struct CodeTable {
  bool codebook;
  float lowest, highest;  // q
  float nearest[512];     // with a codebook: of a half of the index - 256
};

// Values and what the error of each counts, both padded by zeros to a multiple of kEncodedLanes.
struct EncodedValues {
  const float* values;
  const float* importance;
  std::int64_t padded;
};

// Writes q [kEncodedLanes] nearest to (value - offset) * inverse. A number in the middle of two becomes the even one,
// with a codebook the smaller one.
static QCORE_INLINE void nearest_codes(const CodeTable& table, const float* values, float inverse, float offset,
                                       float* q) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  float x[kEncodedLanes];
  for (int i = 0; i < kEncodedLanes; ++i) {
    x[i] = (values[i] - offset) * inverse;
    x[i] = x[i] > table.lowest ? x[i] : table.lowest;
    x[i] = x[i] < table.highest ? x[i] : table.highest;
  }
  if (!table.codebook) {
    for (int i = 0; i < kEncodedLanes; ++i) q[i] = (x[i] + kRound) - kRound;
    return;
  }
  // The middle of two integers is a multiple of a half: all numbers up to the next multiple have the same neighbor.
  float halves[kEncodedLanes];
  for (int i = 0; i < kEncodedLanes; ++i) {
    const float twice = x[i] + x[i], nearest = (twice + kRound) - kRound;
    halves[i] = (nearest < twice ? nearest + 1.0f : nearest) + kRound;
  }
  std::uint32_t bits[kEncodedLanes];
  memcpy(bits, halves, sizeof bits);
  for (int i = 0; i < kEncodedLanes; ++i) q[i] = table.nearest[bits[i] - kRoundBits + 256];
}

// Returns the sum of importance * (value - (scale * q + offset))^2.
static QCORE_INLINE double encoded_error_of(const CodeTable& table, const EncodedValues& block, float scale,
                                            float inverse, float offset) {
  double sums[kEncodedLanes] = {};
  for (std::int64_t first = 0; first < block.padded; first += kEncodedLanes) {
    float q[kEncodedLanes];
    nearest_codes(table, block.values + first, inverse, offset, q);
    for (int i = 0; i < kEncodedLanes; ++i) {
      const double difference = block.values[first + i] - (static_cast<double>(scale) * q[i] + offset);
      sums[i] += block.importance[first + i] * difference * difference;
    }
  }
  for (int half = kEncodedLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

// The same with the vectors of block_search_lanes.h.
template <class S>
static QCORE_INLINE double encoded_error_lanes(const CodeTable& table, const EncodedValues& block, float scale,
                                               float inverse, float offset) {
  using F = typename S::F;
  using Doubles = typename S::Doubles;
  constexpr int kVectors = kEncodedLanes / S::kLanes;
  const F round = S::set(12582912.0f), one = S::set(1.0f);
  const F lowest = S::set(table.lowest), highest = S::set(table.highest);
  const Doubles scales = S::set_doubles(static_cast<double>(scale));
  const Doubles offsets = S::set_doubles(static_cast<double>(offset));
  Doubles sums[kVectors];
  for (Doubles& sum : sums) sum = S::set_doubles(0.0);
  for (std::int64_t first = 0; first < block.padded; first += kEncodedLanes)
    for (int i = 0; i < kVectors; ++i) {
      const std::int64_t at = first + i * S::kLanes;
      const F value = S::load(block.values + at);
      const F x = S::at_most(S::at_least(S::mul(S::sub(value, S::set(offset)), S::set(inverse)), lowest), highest);
      F q;
      if (table.codebook) {
        const F twice = S::add(x, x), nearest = S::sub(S::add(twice, round), round);
        const F above = S::select(S::greater(twice, nearest), S::add(nearest, one), nearest);
        q = S::lookup(table.nearest + 256, S::add(above, round));
      } else {
        q = S::sub(S::add(x, round), round);
      }
      const Doubles decoded = S::add(S::mul(scales, S::to_doubles(q)), offsets);
      const Doubles difference = S::sub(S::to_doubles(value), decoded);
      const Doubles importance = S::to_doubles(S::load(block.importance + at));
      sums[i] = S::add(sums[i], S::mul(S::mul(importance, difference), difference));
    }
  double each[kEncodedLanes];
  static_assert(sizeof sums == sizeof each, "lanes in order");
  memcpy(each, sums, sizeof each);
  for (int half = kEncodedLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) each[i] += each[i + half];
  return each[0];
}

}  // namespace qcore
