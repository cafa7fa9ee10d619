#pragma once

#include <math.h>

#include "numerics/portable.h"

// One lane of the vectors that lane-generic arithmetic (lut_eval.h) is written for: the operations that a CPU's vector
// types and a GPU's thread have in common, each rounded once. Vector types implement the same names.
namespace qcore::numerics {

struct ScalarLanes {
  using F = float;
  using I = std::int32_t;
  using M = bool;

  QCORE_NUMERIC F set(float x) { return x; }
  QCORE_NUMERIC I set(std::int32_t x) { return x; }

  QCORE_NUMERIC F add(F a, F b) { return a + b; }
  QCORE_NUMERIC F sub(F a, F b) { return a - b; }
  QCORE_NUMERIC F mul(F a, F b) { return a * b; }
  QCORE_NUMERIC F div(F a, F b) { return a / b; }
  QCORE_NUMERIC F fma(F a, F b, F c) { return fma_once(a, b, c); }
  QCORE_NUMERIC F floor(F x) { return floorf(x); }
  QCORE_NUMERIC F round_even(F x) { return rintf(x); }

  // The second operand where the first is a NaN.
  QCORE_NUMERIC F at_least(F x, F low) { return x > low ? x : low; }
  QCORE_NUMERIC F at_most(F x, F high) { return x < high ? x : high; }

  // |x| at most `bound`, x's sign; what becomes of a NaN is not said.
  QCORE_NUMERIC F limited(F x, F bound) { return at_most(at_least(x, -bound), bound); }

  QCORE_NUMERIC I truncate(F x) { return static_cast<I>(x); }  // of values that an int32 holds
  QCORE_NUMERIC F to_float(I i) { return static_cast<F>(i); }
  QCORE_NUMERIC I bits(F x) { return static_cast<I>(float_bits(x)); }
  QCORE_NUMERIC F from_bits(I i) { return bits_float(static_cast<std::uint32_t>(i)); }

  QCORE_NUMERIC I add(I a, I b) {
    return static_cast<I>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
  QCORE_NUMERIC I sub(I a, I b) {
    return static_cast<I>(static_cast<std::uint32_t>(a) - static_cast<std::uint32_t>(b));
  }
  QCORE_NUMERIC I bit_and(I a, I b) { return a & b; }
  QCORE_NUMERIC I bit_or(I a, I b) { return a | b; }
  QCORE_NUMERIC I larger(I a, I b) { return a > b ? a : b; }
  template <int kBits>
  QCORE_NUMERIC I shift_left(I a) {
    return static_cast<I>(static_cast<std::uint32_t>(a) << kBits);
  }
  template <int kBits>
  QCORE_NUMERIC I shift_right(I a) {  // arithmetic
    static_assert((-1 >> 1) == -1);
    return a >> kBits;
  }

  QCORE_NUMERIC M less(F a, F b) { return a < b; }
  QCORE_NUMERIC M is_nan(F x) { return x != x; }
  QCORE_NUMERIC M either(M a, M b) { return a || b; }
  QCORE_NUMERIC F select(M m, F yes, F no) { return m ? yes : no; }
  QCORE_NUMERIC I select(M m, I yes, I no) { return m ? yes : no; }
};

}  // namespace qcore::numerics
