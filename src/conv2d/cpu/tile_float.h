#pragma once

#include "conv2d/cpu/tile_store.h"
#include "conv2d/cpu/vtable.h"
#include "gemm/cpu/float_weights.h"

// As tile_integer.h, with float activations: weights are decoded in registers, once for all pixels of the tile.
namespace qcore {
namespace {

template <class V, int Results, int Panels, int Bits>
struct ConvFloatTile {
  using Int = typename V::Int;
  using Float = typename V::Float;
  using Weights = FloatWeights<V, Bits>;
  static constexpr int kVectorsPerPanel = Weights::kVectorsPerPanel, kVectors = Panels * kVectorsPerPanel;
  static constexpr int kStepK = Weights::kStepK;

  static void run(const ConvTileArguments& t) {
    const PackedLayout& layout = *t.layout;
    const std::int64_t blocks = layout.blocks(), panel_bytes = layout.panel_bytes();
    const std::uint8_t* w = t.codes;
    Float y[Results][kVectors], sum[Results][kVectors];
    unroll<Results>([&](auto r) QCORE_UNROLLED {
      unroll<kVectors>([&](auto v) QCORE_UNROLLED { y[r.value][v.value] = V::set1(0.0f); });
    });

    const std::int64_t* pixels = t.pixels;
    for (std::int64_t tap = 0; tap < layout.taps; ++tap, pixels += t.tap_stride) {
      const float* a[Results];
      unroll<Results>([&](auto r)
                          QCORE_UNROLLED { a[r.value] = reinterpret_cast<const float*>(t.rows + pixels[r.value]); });
      std::int64_t at = 0;
      for (std::int64_t p = 0; p < blocks; ++p) {
        typename Weights::Block block[kVectors];
        unroll<kVectors>([&](auto v) QCORE_UNROLLED {
          block[v.value] = Weights::block_of(t.scales, t.offsets, blocks, v.value, p);
        });
        unroll<Results>([&](auto r) QCORE_UNROLLED {
          unroll<kVectors>([&](auto v) QCORE_UNROLLED { sum[r.value][v.value] = V::set1(0.0f); });
        });
        for (std::int64_t step = layout.block_steps(p); step > 0; --step) {
          Int stored[kVectors];
          unroll<kVectors>([&](auto v) QCORE_UNROLLED {
            stored[v.value] =
                V::load(w + v.value / kVectorsPerPanel * panel_bytes + v.value % kVectorsPerPanel * (4 * V::kLanes));
          });
          unroll<kStepK>([&](auto k) QCORE_UNROLLED {
            unroll<kVectors>([&](auto v) QCORE_UNROLLED {
              const Float weight = Weights::template decode<k.value>(stored[v.value], block[v.value]);
              unroll<Results>([&](auto r) QCORE_UNROLLED {
                sum[r.value][v.value] = V::fma(V::set1(a[r.value][at + k.value]), weight, sum[r.value][v.value]);
              });
            });
          });
          w += PackedLayout::kStepBytes;
          at += kStepK;
        }
        unroll<Results>([&](auto r) QCORE_UNROLLED {
          unroll<kVectors>(
              [&](auto v) QCORE_UNROLLED { y[r.value][v.value] = V::add(y[r.value][v.value], sum[r.value][v.value]); });
        });
      }
    }
    store_totals<V, Panels>(t, y);
  }
};

}  // namespace
}  // namespace qcore
