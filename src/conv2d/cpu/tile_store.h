#pragma once

#include "conv2d/cpu/vtable.h"
#include "simd/unroll.h"

namespace qcore {
namespace {

// Finishes a tile's totals while they are in registers: bias, clamp.
template <class V, int Panels, int Results, int Vectors>
QCORE_NUMERIC void store_totals(const ConvTileArguments& t, typename V::Float (&y)[Results][Vectors]) {
  if (t.bias) {
    unroll<Vectors>([&](auto v) QCORE_UNROLLED {
      const typename V::Float bias = V::load(t.bias + v.value * V::kLanes);
      unroll<Results>([&](auto r) QCORE_UNROLLED { y[r.value][v.value] = V::add(y[r.value][v.value], bias); });
    });
  }
  if (t.clamp) {
    const typename V::Float lo = V::set1(t.lo), hi = V::set1(t.hi);
    unroll<Results>([&](auto r) QCORE_UNROLLED {
      unroll<Vectors>(
          [&](auto v) QCORE_UNROLLED { y[r.value][v.value] = V::at_most(V::at_least(y[r.value][v.value], lo), hi); });
    });
  }
  unroll<Results>([&](auto r) QCORE_UNROLLED {
    unroll<Vectors>([&](auto v) QCORE_UNROLLED {
      V::store(t.out + r.value * t.out_stride + v.value * V::kLanes, y[r.value][v.value]);
    });
  });
}

}  // namespace
}  // namespace qcore
