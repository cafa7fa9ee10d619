#pragma once

#include "numerics/lanes.h"

// Rotary position embedding of a pair of elements (a, b). The sums are written as fma, because g++ 12 fuses neighboring
// differences and sums of products (vfmaddsub) in spite of -ffp-contract=off.
namespace qcore::numerics {

template <class L, class F = typename L::F>
QCORE_NUMERIC F rotated_first(F a, F b, F cos, F sin) {
  return L::fma(a, cos, L::sub(L::set(0.0f), L::mul(b, sin)));
}

template <class L, class F = typename L::F>
QCORE_NUMERIC F rotated_second(F a, F b, F cos, F sin) {
  return L::fma(b, cos, L::mul(a, sin));
}

}  // namespace qcore::numerics
