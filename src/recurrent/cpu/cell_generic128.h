#pragma once

#include "simd/vector_generic128.h"

namespace qcore {
namespace {

// Provides the operations of cell_avx512.h for vectors of the compiler.
struct CellGeneric128 : Generic128 {
  static constexpr bool kLooksUpLevels = false;
  using UnsignedLongs = std::uint64_t __attribute__((vector_size(16)));
  struct Wide {
    Longs lo, hi;
  };

  using Base = Generic128;
  using Base::add;
  using Base::bit_and;
  using Base::mul;
  using Base::sub;

  QCORE_NUMERIC Int sub(Int a, Int b) { return (Int)((Unsigned)a - (Unsigned)b); }
  QCORE_NUMERIC Int mul(Int a, Int b) { return (Int)((Unsigned)a * (Unsigned)b); }
  QCORE_NUMERIC Int exclusive(Int a, Int b) { return a ^ b; }
  QCORE_NUMERIC Int smaller(Int a, Int b) { return select(a < b, a, b); }
  QCORE_NUMERIC Int larger(Int a, Int b) { return max(a, b); }
  QCORE_NUMERIC Int sign(Int a) { return a >> 31; }
  QCORE_NUMERIC Int shift_right(Int a, int n) { return a >> n; }
  QCORE_NUMERIC Int shift_left(Int a, int n) { return shift_left_32(a, n); }
  QCORE_NUMERIC Int shift_right(Int a, Int n) { return a >> n; }
  QCORE_NUMERIC Int shift_left(Int a, Int n) { return (Int)((Unsigned)a << (Unsigned)n); }

  QCORE_NUMERIC Wide widen(Int a) {
    const Int signs = a >> 31;
    return {(Longs)fold_low<0>(a, signs), (Longs)fold_high<0>(a, signs)};
  }
  QCORE_NUMERIC Int narrow(Wide a) { return __builtin_shufflevector((Int)a.lo, (Int)a.hi, 0, 2, 4, 6); }
  QCORE_NUMERIC Wide all_wide(std::int64_t a) { return {Longs{a, a}, Longs{a, a}}; }
  QCORE_NUMERIC Wide load_wide(const std::int64_t* p) { return {Longs{p[0], p[1]}, Longs{p[2], p[3]}}; }
  QCORE_NUMERIC Wide add(Wide a, Wide b) {
    return {(Longs)((UnsignedLongs)a.lo + (UnsignedLongs)b.lo), (Longs)((UnsignedLongs)a.hi + (UnsignedLongs)b.hi)};
  }
  QCORE_NUMERIC Wide negative(Wide a) { return {-a.lo, -a.hi}; }
  QCORE_NUMERIC Wide bit_and(Wide a, Wide b) { return {a.lo & b.lo, a.hi & b.hi}; }
  QCORE_NUMERIC Wide multiply_wide(Int a, Int b) {
    const Wide x = widen(a), y = widen(b);
    return {x.lo * y.lo, x.hi * y.hi};
  }
  QCORE_NUMERIC Wide sign(Wide a) { return {a.lo >> 63, a.hi >> 63}; }
  QCORE_NUMERIC Wide shift_right(Wide a, Wide n) { return {a.lo >> n.lo, a.hi >> n.hi}; }
  QCORE_NUMERIC Wide shift_left(Wide a, Wide n) {
    return {(Longs)((UnsignedLongs)a.lo << (UnsignedLongs)n.lo), (Longs)((UnsignedLongs)a.hi << (UnsignedLongs)n.hi)};
  }
  QCORE_NUMERIC Wide limited(Wide a, std::int64_t lo, std::int64_t hi) {
    return {limited64(a.lo, lo, hi), limited64(a.hi, lo, hi)};
  }

  QCORE_NUMERIC Int load_words(const std::int16_t* p) { return load_words_signed(p); }
  QCORE_NUMERIC void store_words(std::int16_t* p, Int a) { store_low_words(p, a); }
  QCORE_NUMERIC void store_bytes(std::uint8_t* p, Int a) { store_low_bytes(p, a); }

 private:
  QCORE_NUMERIC Longs limited64(Longs a, std::int64_t lo, std::int64_t hi) {
    const Longs low = {lo, lo}, high = {hi, hi};
    const Longs below = (Longs)(a < low), raised = (below & low) | (~below & a), above = (Longs)(raised > high);
    return (above & high) | (~above & raised);
  }
};

// Even and odd bytes are multiplied as words of 16 bits.
struct DotWords {
  using V = CellGeneric128;
  struct Weights {
    V::Int even, odd;
  };
  using Inputs = Weights;
  static constexpr int kMaxSums = 9;

  QCORE_NUMERIC Weights load(const std::int8_t* w) {
    const V::Int bytes = V::Base::load(static_cast<const void*>(w));
    return {(V::Int)((V::Words)V::shift_left_16(bytes, 8) >> 8), (V::Int)((V::Words)bytes >> 8)};
  }
  QCORE_NUMERIC Inputs spread(const std::uint8_t* u) {
    std::int32_t four;
    memcpy(&four, u, 4);
    const V::Int bytes = V::set1(four);
    return {V::Base::bit_and(bytes, V::set1(0x00ff00ff)), V::shift_right_16(bytes, 8)};
  }
  QCORE_NUMERIC void multiply(V::Int& sum, const Inputs& u, const Weights& w) {
    sum = V::Base::add(sum, V::multiply_pairs(u.even, w.even));
    sum = V::Base::add(sum, V::multiply_pairs(u.odd, w.odd));
  }
};

}  // namespace
}  // namespace qcore
