#pragma once

#include "numerics/portable.h"

namespace qcore {
namespace {

template <int I>
struct Index {
  static constexpr int value = I;
};

// Calls f(Index<0>{}), ..., f(Index<N-1>{}): constant indices from the start, so that arrays of vectors become
// registers before the optimizer looks at them. The calls are written out, because each level of a recursion would copy
// the code of those below it once more.
template <int N, class F>
QCORE_NUMERIC void unroll(F&& f) {
  if constexpr (N > 0) f(Index<0>{});
  if constexpr (N > 1) f(Index<1>{});
  if constexpr (N > 2) f(Index<2>{});
  if constexpr (N > 3) f(Index<3>{});
  if constexpr (N > 4) f(Index<4>{});
  if constexpr (N > 5) f(Index<5>{});
  if constexpr (N > 6) f(Index<6>{});
  if constexpr (N > 7) f(Index<7>{});
  if constexpr (N > 8) unroll<N - 8>([&](auto i) __attribute__((always_inline)) { f(Index<8 + i.value>{}); });
}

// Calls f(0), ..., f(N-1): the same code from a single function, which takes the compiler half the time, where an index
// is part of no constant expression. What such a call passes on, even the count of a shift instruction, is a constant
// once all is inlined, and should be an argument rather than a parameter of a template.
template <int N, class F>
QCORE_NUMERIC void repeat(F&& f) {
  if constexpr (N > 0) f(0);
  if constexpr (N > 1) f(1);
  if constexpr (N > 2) f(2);
  if constexpr (N > 3) f(3);
  if constexpr (N > 4) f(4);
  if constexpr (N > 5) f(5);
  if constexpr (N > 6) f(6);
  if constexpr (N > 7) f(7);
  if constexpr (N > 8) repeat<N - 8>([&](int i) __attribute__((always_inline)) { f(8 + i); });
}

}  // namespace
}  // namespace qcore

// Lambdas handed to unroll() and repeat().
#define QCORE_UNROLLED __attribute__((always_inline))
