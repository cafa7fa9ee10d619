#pragma once

#include "gemm/cpu/tile_table.h"
#include "simd/unroll.h"
#include "static/cpu/vtable.h"

// A tile of the product: sums stay in registers over all taps and channels and are requantized once.
//
// V is the set of vectors of codes. Dot says how codes are multiplied:
//   Codes operand(Int)        prepares vectors of unsigned codes of x
//   Weights split(Int)        prepares a vector of weights
//   multiply(acc, w, codes)   adds the products of fours
namespace qcore {
namespace {

// numerics/requantize.h's steps, in its order, but for the bounds: narrowing saturates. Only what leaves int32 upwards
// must be cut before it becomes an integer.
template <class V, bool Cut>
QCORE_NUMERIC typename V::Int requantize_sums(typename V::Int sums, const float* multipliers,
                                              const StaticCodeFormat& format) {
  const auto y = V::mul(V::to_float(sums), V::load(multipliers));
  if constexpr (!Cut) return V::to_int(y);
  return V::to_int(V::at_most(y, V::set1(format.largest)));
}

template <class V, class Dot, int Pixels, int Panels>
struct ProductTile {
  using Int = typename V::Int;
  static constexpr int kPanelVectors = 16 / V::kLanes, kVectors = Panels * kPanelVectors;
  static constexpr int kPrefetch = 1024;  // bytes ahead, where each weight is used once or twice

  QCORE_NUMERIC void add(Int (&acc)[Pixels][kVectors], const StaticTileArguments& t) {
    const std::int8_t* w = t.weights;
    const std::int64_t panel_bytes = t.panel_bytes, end = 4 * t.steps;
    const Int flip = V::set1(static_cast<std::int32_t>(t.sign_xor_mask));
    const char* const* pointers = t.x;
    for (std::int64_t tap = 0; tap < t.taps; ++tap, pointers += t.tap_stride) {
      const char* x[Pixels];
      repeat<Pixels>([&](int p) QCORE_UNROLLED { x[p] = pointers[p] + t.x_offset; });
      for (std::int64_t k = 0; k < end; k += 4, w += 64) {
        typename Dot::Weights weights[kVectors];
        unroll<kVectors>([&](auto v) QCORE_UNROLLED {
          const std::int8_t* from = w + v.value / kPanelVectors * panel_bytes + v.value % kPanelVectors * V::kBytes;
          weights[v.value] = Dot::split(V::load(from));
          if constexpr (Pixels <= 2 && v.value % kPanelVectors == 0) __builtin_prefetch(from + kPrefetch, 0, 3);
        });
        repeat<Pixels>([&](int p) QCORE_UNROLLED {
          std::int32_t four;
          memcpy(&four, x[p] + k, 4);
          const typename Dot::Codes codes = Dot::operand(V::flip(V::set1(four), flip));
          repeat<kVectors>([&](int v) QCORE_UNROLLED { Dot::multiply(acc[p][v], weights[v], codes); });
        });
      }
    }
  }

  static void run(const StaticTileArguments& t) {
    Int acc[Pixels][kVectors];
    repeat<kVectors>([&](int v) QCORE_UNROLLED {
      const Int start = V::load(t.acc_init + v * V::kLanes);
      repeat<Pixels>([&](int p) QCORE_UNROLLED { acc[p][v] = start; });
    });
    add(acc, t);
    if (__builtin_expect(t.format.needs_saturation, 0))
      store<true>(acc, t);
    else
      store<false>(acc, t);
  }

  template <bool Cut>
  QCORE_NUMERIC void store(const Int (&acc)[Pixels][kVectors], const StaticTileArguments& t) {
    repeat<Pixels>([&](int p) QCORE_UNROLLED {
      Int sums[V::kStored] = {};
      repeat<kVectors>([&](int v) QCORE_UNROLLED {
        sums[v] = requantize_sums<V, Cut>(acc[p][v], t.multipliers + v * V::kLanes, t.format);
      });
      V::store_first_bytes(t.out + p * t.out_stride, V::in_order(V::narrow(sums, t.format)), t.channels);
    });
  }
};

// The kernel of StaticTileKernels for tiles of up to so many panels.
template <class V, class Dot, int MaxPanels>
struct ProductTiles {
  template <int Pixels, int Panels>
  using Tile = ProductTile<V, Dot, Pixels, Panels>;
  static constexpr int kMaxRows = StaticTileArguments::kMaxRows;
  static constexpr auto run =
      run_tile_of_size<StaticTileArguments, Tile, Tile, kMaxRows, MaxPanels, kMaxRows * MaxPanels>;
};

}  // namespace
}  // namespace qcore
