#pragma once

#include <cstdint>
#include <cstring>

#include "numerics/portable.h"

// Loops over the values of a block in an encoding: the definition, and EncodedLanes, which computes the same with an
// instruction set's vectors. Both have the same bits, because they add in the same order.
namespace qcore {

constexpr int kEncodedLanes = 8;  // values side by side
// 1.5 * 2^23: its sum with a small float is rounded to a whole number, which is then in the lowest bits.
constexpr float kRound = 12582912.0f;
constexpr std::uint32_t kRoundBits = 0x4b400000u;

// Finds the integer q of an encoding that is nearest to a number.
struct CodeTable {
  bool codebook;
  bool offsets;           // false: all offsets are 0
  float lowest, highest;  // q
  float nearest[512];     // with a codebook: of a half of the index - 256
};

// Values and what the error of each counts, both padded by zeros to a multiple of kEncodedLanes.
struct EncodedValues {
  const float* values;
  const float* importance;
  const double* wide;  // the values
  std::int64_t padded;
  bool alike;  // nothing is padded, and every importance is 1
};

// A block, and parameters that it may get. Kernels take many of them at once, because the sums of one wait for each
// other.
struct EncodedTask {
  const EncodedValues* block;
  float scale, inverse, offset;
};

// Writes q [kEncodedLanes] nearest to (value - offset) * inverse. A number in the middle of two becomes the even one,
// with a codebook the smaller one.
static QCORE_INLINE void nearest_codes(const CodeTable& table, const float* values, float inverse, float offset,
                                       float* q) {
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

// Holds sums over a block, each term times its importance: of q (if there are offsets), of q^2 and of q times the
// value. From these and the
// sums that do not depend on q (EncodedBlock) the method of least squares computes the scale and the offset.
struct EncodedMoments {
  double q, qq, q_value;
};

// Adds up the lanes of sums that are side by side.
static QCORE_INLINE double sum_of_lanes(double (&sums)[kEncodedLanes]) {
  for (int half = kEncodedLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

// Returns the sum of importance * (value - (scale * q + offset))^2.
static QCORE_INLINE double encoded_error_of(const CodeTable& table, const EncodedTask& task) {
  const EncodedValues& block = *task.block;
  double sums[kEncodedLanes] = {};
  for (std::int64_t first = 0; first < block.padded; first += kEncodedLanes) {
    float q[kEncodedLanes];
    nearest_codes(table, block.values + first, task.inverse, task.offset, q);
    for (int i = 0; i < kEncodedLanes; ++i) {
      const double difference = block.values[first + i] - (static_cast<double>(task.scale) * q[i] + task.offset);
      sums[i] += block.importance[first + i] * difference * difference;
    }
  }
  return sum_of_lanes(sums);
}

static QCORE_INLINE EncodedMoments encoded_moments_of(const CodeTable& table, const EncodedTask& task) {
  const EncodedValues& block = *task.block;
  double q1[kEncodedLanes] = {}, qq[kEncodedLanes] = {}, q_value[kEncodedLanes] = {};
  for (std::int64_t first = 0; first < block.padded; first += kEncodedLanes) {
    float q[kEncodedLanes];
    nearest_codes(table, block.values + first, task.inverse, task.offset, q);
    for (int i = 0; i < kEncodedLanes; ++i) {
      const double weighed = static_cast<double>(block.importance[first + i]) * q[i];
      q1[i] += weighed;
      qq[i] += weighed * q[i];
      q_value[i] += weighed * block.values[first + i];
    }
  }
  return {table.offsets ? sum_of_lanes(q1) : 0.0, sum_of_lanes(qq), sum_of_lanes(q_value)};
}

// The same with the vectors of block_search_lanes.h. A code has at most 8 bits, so that
// its products with a scale, a value, or an importance and itself are exact in doubles, and a fused addition has the
// bits of a separate one.
template <class S>
struct EncodedLanes {
  using F = typename S::F;
  using Doubles = typename S::Doubles;
  static constexpr int kVectors = kEncodedLanes / S::kLanes;

  struct Sums {
    Doubles sums[kVectors];

    QCORE_INLINE Sums() {
      for (Doubles& sum : sums) sum = S::set_doubles(0.0);
    }
    QCORE_INLINE void add(int i, Doubles a) { sums[i] = S::add(sums[i], a); }
    QCORE_INLINE void add_exact_product(int i, Doubles a, Doubles b) { sums[i] = S::fma(a, b, sums[i]); }
    // In the order of sum_of_lanes().
    QCORE_INLINE double total() const {
      static_assert(kVectors <= 2, "the first step adds up vectors, the others are those of S::total()");
      return S::total(kVectors == 2 ? S::add(sums[0], sums[kVectors - 1]) : sums[0]);
    }
  };

  // nearest_codes() of one vector.
  template <bool kCodebook, bool kOffsets>
  static QCORE_INLINE F nearest(const CodeTable& table, F value, F inverse, F offset) {
    const F round = S::set(kRound);
    F x = S::mul(kOffsets ? S::sub(value, offset) : value, inverse);
    x = S::at_most(S::at_least(x, S::set(table.lowest)), S::set(table.highest));
    if (!kCodebook) return S::sub(S::add(x, round), round);
    const F twice = S::add(x, x), near = S::sub(S::add(twice, round), round);
    const F above = S::select(S::greater(twice, near), S::add(near, S::set(1.0f)), near);
    return S::lookup(table.nearest + 256, S::add(above, round));
  }

  template <bool kCodebook, bool kOffsets, bool kAlike>
  static QCORE_INLINE double error(const CodeTable& table, const EncodedTask& task) {
    const EncodedValues& block = *task.block;
    const F inverse = S::set(task.inverse), offset = S::set(task.offset);
    const Doubles scales = S::set_doubles(static_cast<double>(task.scale));
    const Doubles offsets = S::set_doubles(static_cast<double>(task.offset));
    Sums sums;
    for (std::int64_t first = 0; first < block.padded; first += kEncodedLanes)
      for (int i = 0; i < kVectors; ++i) {
        const std::int64_t at = first + i * S::kLanes;
        const Doubles value = S::load_doubles(block.wide + at);
        const Doubles q =
            S::to_doubles(nearest<kCodebook, kOffsets>(table, S::load(block.values + at), inverse, offset));
        const Doubles difference =
            kOffsets ? S::sub(S::fma(scales, q, offsets), value) : S::minus_product(value, scales, q);
        const Doubles weighed = kAlike ? difference : S::mul(S::to_doubles(S::load(block.importance + at)), difference);
        sums.add(i, S::mul(weighed, difference));
      }
    return sums.total();
  }

  template <bool kCodebook, bool kOffsets, bool kAlike>
  static QCORE_INLINE EncodedMoments moments_of(const CodeTable& table, const EncodedTask& task) {
    const EncodedValues& block = *task.block;
    const F inverse = S::set(task.inverse), offset = S::set(task.offset);
    Sums q1, qq, q_value;
    for (std::int64_t first = 0; first < block.padded; first += kEncodedLanes)
      for (int i = 0; i < kVectors; ++i) {
        const std::int64_t at = first + i * S::kLanes;
        const Doubles value = S::load_doubles(block.wide + at);
        const Doubles q =
            S::to_doubles(nearest<kCodebook, kOffsets>(table, S::load(block.values + at), inverse, offset));
        const Doubles weighed = kAlike ? q : S::mul(S::to_doubles(S::load(block.importance + at)), q);
        if (kOffsets) q1.add(i, weighed);
        qq.add_exact_product(i, weighed, q);
        if (kAlike)
          q_value.add_exact_product(i, q, value);
        else
          q_value.add(i, S::mul(weighed, value));
      }
    return {kOffsets ? q1.total() : 0.0, qq.total(), q_value.total()};
  }

  struct Errors {
    using Result = double;
    template <bool kCodebook, bool kOffsets, bool kAlike>
    static QCORE_INLINE void run(const CodeTable& table, const EncodedTask* tasks, int count, double* errors) {
      for (int i = 0; i < count; ++i) errors[i] = error<kCodebook, kOffsets, kAlike>(table, tasks[i]);
    }
  };

  struct Moments {
    using Result = EncodedMoments;
    template <bool kCodebook, bool kOffsets, bool kAlike>
    static QCORE_INLINE void run(const CodeTable& table, const EncodedTask* tasks, int count, EncodedMoments* sums) {
      for (int i = 0; i < count; ++i) sums[i] = moments_of<kCodebook, kOffsets, kAlike>(table, tasks[i]);
    }
  };

  // Runs the loops of Errors or Moments that fit the table and the blocks.
  template <class Loops>
  static void run(const CodeTable& table, const EncodedTask* tasks, int count, typename Loops::Result* results) {
    bool alike = true;
    for (int i = 0; i < count; ++i) alike = alike && tasks[i].block->alike;
    table.codebook ? choose<Loops, true>(table, alike, tasks, count, results)
                   : choose<Loops, false>(table, alike, tasks, count, results);
  }

  // Writes q [padded].
  static void codes(const CodeTable& table, const EncodedTask& task, float* q) {
    const F inverse = S::set(task.inverse), offset = S::set(task.offset);
    for (std::int64_t at = 0; at < task.block->padded; at += S::kLanes) {
      const F value = S::load(task.block->values + at);
      S::store(q + at, table.codebook ? nearest<true, true>(table, value, inverse, offset)
                                      : nearest<false, true>(table, value, inverse, offset));
    }
  }

 private:
  template <class Loops, bool kCodebook>
  static QCORE_INLINE void choose(const CodeTable& table, bool alike, const EncodedTask* tasks, int count,
                                  typename Loops::Result* results) {
    if (table.offsets)
      alike ? Loops::template run<kCodebook, true, true>(table, tasks, count, results)
            : Loops::template run<kCodebook, true, false>(table, tasks, count, results);
    else
      alike ? Loops::template run<kCodebook, false, true>(table, tasks, count, results)
            : Loops::template run<kCodebook, false, false>(table, tasks, count, results);
  }
};

}  // namespace qcore
