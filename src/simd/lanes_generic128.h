#pragma once

#include "simd/vector_generic128.h"

// Provides the operations of numerics/lanes.h, and those of simd/vector_generic128.h, for 4 lanes.
namespace qcore {
namespace {

struct GenericLanes128 : Generic128 {
  static constexpr int kWidth = 4;
  using F = Generic128::Float;
  using I = Generic128::Int;
  struct M {
    I bits;
  };

  using Generic128::add;
  using Generic128::load;
  using Generic128::select;
  using Generic128::store;
  using Generic128::sub;

  QCORE_NUMERIC F set(float x) { return set1(x); }
  QCORE_NUMERIC I set(std::int32_t x) { return set1(x); }
  QCORE_NUMERIC I load(const std::int32_t* x) { return Generic128::load(static_cast<const void*>(x)); }
  QCORE_NUMERIC void store(std::int32_t* y, I x) { Generic128::store(static_cast<void*>(y), x); }

  QCORE_NUMERIC F div(F x, F y) { return x / y; }
  QCORE_NUMERIC F floor(F x) {
    const F nearest = round_even(x);
    // The sign is that of x, for zeros.
    const I sign = bits(x) & set(static_cast<std::int32_t>(0x80000000u));
    return from_bits(bits(nearest - from_bits((nearest > x) & bits(set(1.0f)))) | sign);
  }
  QCORE_NUMERIC F at_least(F x, F low) { return select(x > low, x, low); }
  QCORE_NUMERIC F at_most(F x, F high) { return select(x < high, x, high); }
  QCORE_NUMERIC F limited(F x, F bound) { return at_most(at_least(x, -bound), bound); }

  QCORE_NUMERIC I join(I x, I mask, I y) { return (x & mask) | y; }
  QCORE_NUMERIC I truncate(F x) { return __builtin_convertvector(x, I); }
  QCORE_NUMERIC I bits(F x) { return as_int(x); }
  QCORE_NUMERIC F from_bits(I i) { return as_float(i); }

  QCORE_NUMERIC I sub(I x, I y) { return (I)((Unsigned)x - (Unsigned)y); }
  QCORE_NUMERIC I larger(I x, I y) { return max(x, y); }
  template <int kBits>
  QCORE_NUMERIC I shift_left(I x) {
    return shift_left_32(x, kBits);
  }
  template <int kBits>
  QCORE_NUMERIC I shift_right(I x) {  // arithmetic
    return x >> kBits;
  }

  QCORE_NUMERIC M less(F x, F y) { return {x < y}; }
  QCORE_NUMERIC M is_nan(F x) { return {x != x}; }
  QCORE_NUMERIC M either(M x, M y) { return {x.bits | y.bits}; }
  QCORE_NUMERIC F select(M m, F yes, F no) { return select(m.bits, yes, no); }
  QCORE_NUMERIC I select(M m, I yes, I no) { return select(m.bits, yes, no); }
};

}  // namespace
}  // namespace qcore
