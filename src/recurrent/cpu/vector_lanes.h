#pragma once

#include "recurrent/cpu/vtable.h"
#include "simd/unroll.h"

// The lanes of numerics/recurrent/lanes.h as vectors V of int32, and what goes into and comes out of them.
namespace qcore {
namespace {

using numerics::ShiftRounding;

// kWide: products are int64 until they are shifted. pack.cpp proves what fits.
template <class V, ShiftRounding kRounding, bool kWide>
struct VectorLanes {
  using I = typename V::Int;
  using W = typename V::Wide;

  QCORE_NUMERIC I add(I a, I b) { return V::add(a, b); }
  QCORE_NUMERIC I sub(I a, I b) { return V::sub(a, b); }
  QCORE_NUMERIC I set(std::int32_t c) { return V::set1(c); }
  QCORE_NUMERIC I clamped(I a, const numerics::CodeRange& range) {
    return V::smaller(V::larger(a, V::set1(range.lo)), V::set1(range.hi));
  }

  // Shifts right with rounding: a number is added before bits are dropped. Half away from zero: a half, and one less
  // for a negative number. Half to even: one less than a half, and one more if what stays is odd.
  QCORE_NUMERIC I shifted(I a, int n) {
    if (n <= 0) return n < 0 ? V::shift_left(a, -n) : a;
    const std::int32_t half = std::int32_t{1} << (n - 1);
    if constexpr (kRounding == ShiftRounding::half_away)
      return V::shift_right(V::add(V::add(a, V::set1(half)), V::sign(a)), n);
    const I odd = V::bit_and(V::shift_right(a, n), V::set1(1));
    return V::shift_right(V::add(V::add(a, V::set1(half - 1)), odd), n);
  }
  QCORE_NUMERIC I shifted(I a, I n) {  // n at least 0
    const I one = V::set1(1), half = V::shift_right(V::shift_left(one, n), one);
    const I drops = V::smaller(n, one);  // 0 where no bit is dropped
    if constexpr (kRounding == ShiftRounding::half_away)
      return V::shift_right(V::sub(V::add(a, half), V::bit_and(V::sign(a), drops)), n);
    const I odd = V::bit_and(V::shift_right(a, n), drops);
    return V::shift_right(V::add(V::add(a, half), V::sub(odd, drops)), n);
  }
  // n at least 1, half = 2^(n-1). kFraction: the number is `a` and a fraction from 0 to 1, which
  // is 0 where `whole` has all bits, not 1.
  template <bool kFraction>
  QCORE_NUMERIC I shifted(I a, I n, I half, I whole) {
    I less = V::sign(a);
    if constexpr (kRounding == ShiftRounding::half_even)
      less = V::sub(V::bit_and(V::shift_right(a, n), V::set1(1)), V::set1(1));
    if constexpr (kFraction) less = V::bit_and(less, whole);
    return V::shift_right(V::add(V::add(a, half), less), n);
  }
  QCORE_NUMERIC W shifted(W a, W n) {
    const W one = V::all_wide(1), half = V::shift_right(V::shift_left(one, n), one);
    const W drops = V::sign(V::negative(n));  // all bits where some are dropped
    if constexpr (kRounding == ShiftRounding::half_away)
      return V::shift_right(V::add(V::add(a, half), V::bit_and(V::sign(a), drops)), n);
    const W odd = V::bit_and(V::shift_right(a, n), one);
    return V::shift_right(V::add(V::add(a, half), V::bit_and(V::add(odd, V::all_wide(-1)), drops)), n);
  }

  QCORE_NUMERIC I shifted_product(I a, I b, int n) {
    if constexpr (kWide) return V::narrow(shifted(V::multiply_wide(a, b), n));
    return shifted(V::mul(a, b), n);
  }
  QCORE_NUMERIC I shifted_mix(I a, I b, I c, I d, int n) {
    if constexpr (kWide) return V::narrow(shifted(V::add(V::multiply_wide(a, b), V::multiply_wide(c, d)), n));
    return shifted(V::add(V::mul(a, b), V::mul(c, d)), n);
  }
  QCORE_NUMERIC I shifted_sum(I a, I b, int left, I c, I d, int other, int n) {
    if constexpr (kWide) {
      const W first = V::shift_left(V::multiply_wide(a, b), V::all_wide(left));
      const W second = V::shift_left(V::multiply_wide(c, d), V::all_wide(other));
      return V::narrow(shifted(V::add(first, second), n));
    }
    return shifted(V::add(V::shift_left(V::mul(a, b), left), V::shift_left(V::mul(c, d), other)), n);
  }

 private:
  QCORE_NUMERIC W shifted(W a, int n) {
    if (n <= 0) return n < 0 ? V::shift_left(a, V::all_wide(-n)) : a;
    const std::int64_t half = std::int64_t{1} << (n - 1);
    const W count = V::all_wide(n);
    if constexpr (kRounding == ShiftRounding::half_away)
      return V::shift_right(V::add(V::add(a, V::all_wide(half)), V::sign(a)), count);
    const W odd = V::bit_and(V::shift_right(a, count), V::all_wide(1));
    return V::shift_right(V::add(V::add(a, V::all_wide(half - 1)), odd), count);
  }
};

}  // namespace
}  // namespace qcore
