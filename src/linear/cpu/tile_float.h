#pragma once

#include "gemm/cpu/float_weights.h"
#include "linear/cpu/vtable.h"
#include "simd/unroll.h"

// A tile of the product with float activations. A few rows decode the weights in registers, once for all of them; for
// many the driver has them decoded to fp32 first, once for all tiles.
namespace qcore {
namespace {

// Decoding for the arguments of linear's tiles.
template <class V, int Bits>
struct TileWeights : FloatWeights<V, Bits> {
  using Weights = FloatWeights<V, Bits>;
  using typename Weights::Block;
  using typename Weights::Int;
  using Weights::kStepK;
  using Weights::kVectorsPerPanel;

  QCORE_NUMERIC Block block_of(const TileArguments& t, int vector, std::int64_t p) {
    return Weights::block_of(t.scales, t.offsets, t.layout->blocks(), vector, p);
  }

  // The weights of the tile's blocks: fp32 [panels][k, padding included][16].
  static void decode_all(const TileArguments& t, float* out) {
    for (int panel = 0; panel < t.panels; ++panel) {
      const std::uint8_t* w =
          t.codes + panel * t.layout->panel_bytes() + t.first_block * t.block_steps * PackedLayout::kStepBytes;
      for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
        Block block[kVectorsPerPanel];
        unroll<kVectorsPerPanel>(
            [&](auto v) QCORE_UNROLLED { block[v.value] = block_of(t, panel * kVectorsPerPanel + v.value, p); });
        for (std::int64_t step = steps_of(t, p); step > 0; --step, w += PackedLayout::kStepBytes) {
          __builtin_prefetch(w + t.prefetch_distance[0], 0, 2);
          unroll<kVectorsPerPanel>([&](auto v) QCORE_UNROLLED {
            const Int stored = V::load(w + v.value * (4 * V::kLanes));
            unroll<kStepK>([&](auto k) QCORE_UNROLLED {
              V::store(out + k.value * PackedLayout::kPanelRows + v.value * V::kLanes,
                       Weights::template decode<k.value>(stored, block[v.value]));
            });
          });
          out += kStepK * PackedLayout::kPanelRows;
        }
      }
    }
  }

  QCORE_NUMERIC std::int64_t steps_of(const TileArguments& t, std::int64_t p) {
    return p + 1 < t.layout->blocks() ? t.block_steps : t.last_block_steps;
  }
};

template <class V, int Rows, int Panels, int Bits>
struct FloatTile {
  using Int = typename V::Int;
  using Float = typename V::Float;
  using Weights = TileWeights<V, Bits>;
  static constexpr int kVectorsPerPanel = Weights::kVectorsPerPanel, kVectors = Panels * kVectorsPerPanel;
  static constexpr int kStepK = Weights::kStepK;

  static void run(const TileArguments& t) {
    if (t.decoded)
      add_blocks<true>(t);
    else
      add_blocks<false>(t);
  }

 private:
  template <bool Decoded>
  QCORE_NUMERIC void add_blocks(const TileArguments& t) {
    const std::int64_t panel_bytes = t.layout->panel_bytes(), first_step = t.first_block * t.block_steps;
    const std::int64_t decoded_panel = t.decoded_steps * kStepK * PackedLayout::kPanelRows;
    const auto* a = static_cast<const float*>(t.rows.codes) + first_step * kStepK;
    const std::uint8_t* w = t.codes + first_step * PackedLayout::kStepBytes;
    const float* decoded = t.decoded;
    Float y[Rows][kVectors], sum[Rows][kVectors];
    unroll<Rows>([&](auto r) QCORE_UNROLLED {
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        y[r.value][v.value] = t.first_block == 0 ? V::set1(0.0f) : V::load(result(t, r.value, v.value));
      });
    });

    for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
      typename Weights::Block block[kVectors];
      if constexpr (!Decoded)
        unroll<kVectors>([&](auto v) QCORE_UNROLLED { block[v.value] = Weights::block_of(t, v.value, p); });
      unroll<Rows>([&](auto r) QCORE_UNROLLED {
        unroll<kVectors>([&](auto v) QCORE_UNROLLED { sum[r.value][v.value] = V::set1(0.0f); });
      });
      for (std::int64_t step = Weights::steps_of(t, p); step > 0; --step) {
        Int stored[kVectors];
        if constexpr (!Decoded) {
          unroll<Panels>([&](auto panel) QCORE_UNROLLED {
            __builtin_prefetch(w + panel.value * panel_bytes + t.prefetch_distance[panel.value], 0, 2);
          });
          unroll<kVectors>([&](auto v) QCORE_UNROLLED {
            stored[v.value] =
                V::load(w + v.value / kVectorsPerPanel * panel_bytes + v.value % kVectorsPerPanel * (4 * V::kLanes));
          });
        }
        unroll<kStepK>([&](auto k) QCORE_UNROLLED {
          unroll<kVectors>([&](auto v) QCORE_UNROLLED {
            Float weight;
            if constexpr (Decoded)
              weight = V::load(decoded + v.value / kVectorsPerPanel * decoded_panel +
                               k.value * PackedLayout::kPanelRows + v.value % kVectorsPerPanel * V::kLanes);
            else
              weight = Weights::template decode<k.value>(stored[v.value], block[v.value]);
            unroll<Rows>([&](auto r) QCORE_UNROLLED {
              const Float x = V::set1(a[k.value + r.value * t.rows.row_stride]);
              sum[r.value][v.value] = V::fma(x, weight, sum[r.value][v.value]);
            });
          });
        });
        w += PackedLayout::kStepBytes;
        decoded += kStepK * PackedLayout::kPanelRows;
        a += kStepK;
      }
      unroll<Rows>([&](auto r) QCORE_UNROLLED {
        unroll<kVectors>(
            [&](auto v) QCORE_UNROLLED { y[r.value][v.value] = V::add(y[r.value][v.value], sum[r.value][v.value]); });
      });
    }
    unroll<Rows>([&](auto r) QCORE_UNROLLED {
      unroll<kVectors>([&](auto v) QCORE_UNROLLED { V::store(result(t, r.value, v.value), y[r.value][v.value]); });
    });
  }

  QCORE_NUMERIC float* result(const TileArguments& t, int r, int v) {
    return t.out + r * Panels * PackedLayout::kPanelRows + v * V::kLanes;
  }
};

template <class V>
[[maybe_unused]] static void decode_weights(const TileArguments& t, float* out) {
  if (t.layout->bits == 8)
    TileWeights<V, 8>::decode_all(t, out);
  else
    TileWeights<V, 4>::decode_all(t, out);
}

}  // namespace
}  // namespace qcore
