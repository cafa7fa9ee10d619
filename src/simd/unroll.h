#pragma once

#include "numerics/portable.h"

namespace qcore {
namespace {

template <int I>
struct Index {
  static constexpr int value = I;
};

// Calls f(Index<0>{}), ..., f(Index<N-1>{}): constant indices from the start, so that arrays of vectors become
// registers before the optimizer looks at them.
template <int N, int I = 0, class F>
QCORE_NUMERIC void unroll(F&& f) {
  if constexpr (I < N) {
    f(Index<I>{});
    unroll<N, I + 1>(f);
  }
}

}  // namespace
}  // namespace qcore

// Lambdas handed to unroll().
#define QCORE_UNROLLED __attribute__((always_inline))
