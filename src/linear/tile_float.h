#pragma once

#include "linear/tile_kernels.h"
#include "linear/tile_parameters.h"
#include "linear/unroll.h"

// A tile of the product with float activations: weights are decoded in registers, once for all rows.
namespace qcore {
namespace {

template <class V, int Rows, int Panels, int Bits>
struct FloatTile {
  using Int = typename V::Int;
  using Float = typename V::Float;
  static constexpr int kVectorsPerPanel = static_cast<int>(PackedLayout::kPanelRows) / V::kLanes;
  static constexpr int kVectors = Panels * kVectorsPerPanel;
  static constexpr int kQuads = Bits == 8 ? 1 : 2;
  static constexpr float kZeroCode = 1 << (Bits - 1);

  static void run(const TileArguments& t) {
    const PackedLayout& layout = *t.layout;
    const std::int64_t blocks = layout.blocks(), panel_bytes = layout.panel_bytes();
    const std::int64_t first_step = t.first_block * t.block_steps;
    const auto* a = static_cast<const float*>(t.rows.codes) + first_step * 4 * kQuads;
    const std::uint8_t* w = t.codes + first_step * PackedLayout::kStepBytes;
    Float y[Rows][kVectors], sum[Rows][kVectors];
    unroll<Rows>([&](auto r) QCORE_UNROLLED {
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        y[r.value][v.value] = t.first_block == 0 ? V::all(0.0f) : V::load(result(t, r.value, v.value));
      });
    });

    for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
      Float scale[kVectors], offset[kVectors];
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        const std::int64_t at = (v.value / kVectorsPerPanel * blocks + p) * PackedLayout::kPanelRows +
                                v.value % kVectorsPerPanel * V::kLanes;
        scale[v.value] = load_parameters<V>(t.scales, at);
        offset[v.value] = t.offsets.data ? load_parameters<V>(t.offsets, at) : V::all(0.0f);
      });
      unroll<Rows>([&](auto r) QCORE_UNROLLED {
        unroll<kVectors>([&](auto v) QCORE_UNROLLED { sum[r.value][v.value] = V::all(0.0f); });
      });
      const std::int64_t steps = p + 1 < blocks ? t.block_steps : t.last_block_steps;
      for (std::int64_t step = 0; step < steps; ++step) {
        unroll<kQuads * 4>([&](auto k) QCORE_UNROLLED {
          constexpr int kShift = k.value % 4 * 8 + k.value / 4 * 4;
          unroll<kVectors>([&](auto v) QCORE_UNROLLED {
            const Int stored =
                V::load(w + v.value / kVectorsPerPanel * panel_bytes + v.value % kVectorsPerPanel * (4 * V::kLanes));
            const Int code = V::both(V::shift_right_32(stored, kShift), V::all((1 << Bits) - 1));
            const Float weight = V::fma(scale[v.value], V::sub(V::to_float(code), V::all(kZeroCode)), offset[v.value]);
            unroll<Rows>([&](auto r) QCORE_UNROLLED {
              const Float x = V::all(a[k.value + r.value * t.rows.row_stride]);
              sum[r.value][v.value] = V::fma(x, weight, sum[r.value][v.value]);
            });
          });
        });
        w += PackedLayout::kStepBytes;
        a += 4 * kQuads;
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

}  // namespace
}  // namespace qcore
