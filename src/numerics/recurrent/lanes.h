#pragma once

#include "numerics/fixed_point.h"

// Operations on codes less their zero points, which the cells of recurrent layers compute with.
// L is a type of lanes, scalar or vector, with a rounding of its own:
//   I, Table                     integers; the codes of a function
//   add(a, b), sub(a, b), set(c)
//   clamped(a, range)
//   shifted(a, n)                a * 2^-n, rounded
//   shifted_product(a, b, n)     a * b * 2^-n, rounded
//   shifted_mix(a, b, c, d, n)   (a * b + c * d) * 2^-n, rounded
//   shifted_sum(a, b, left, c, d, other, n)   (a * b * 2^left + c * d * 2^other) * 2^-n, rounded
//   look_up(table, index)
namespace qcore::numerics {

// The codes of a tensor less its zero point.
struct CodeRange {
  std::int32_t lo, hi;
};

// Where a table has the code of a function of `pre`.
template <class L>
QCORE_NUMERIC typename L::I table_index(typename L::I pre, const CodeRange& range) {
  return L::sub(pre, L::set(range.lo));
}

// The definition's lanes: one channel in 64 bits, which hold every number that an operator's make() lets pass.
template <ShiftRounding kRounding>
struct IntegerLanes {
  using I = std::int64_t;
  using Table = const std::int32_t*;

  QCORE_NUMERIC I add(I a, I b) { return a + b; }
  QCORE_NUMERIC I sub(I a, I b) { return a - b; }
  QCORE_NUMERIC I set(std::int32_t c) { return c; }
  QCORE_NUMERIC I clamped(I a, const CodeRange& range) { return clamp_code(a, range.lo, range.hi); }
  QCORE_NUMERIC I shifted(I a, int n) { return rounding_shift<kRounding>(a, n); }
  QCORE_NUMERIC I shifted_product(I a, I b, int n) { return shifted(a * b, n); }
  QCORE_NUMERIC I shifted_mix(I a, I b, I c, I d, int n) { return shifted(a * b + c * d, n); }
  QCORE_NUMERIC I shifted_sum(I a, I b, int left, I c, I d, int other, int n) {
    return shifted(shift_left_saturating(a * b, left) + shift_left_saturating(c * d, other), n);
  }
  QCORE_NUMERIC I look_up(Table table, I index) { return table[index]; }
};

}  // namespace qcore::numerics
