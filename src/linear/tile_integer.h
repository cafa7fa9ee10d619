#pragma once

#include "linear/tile_kernels.h"
#include "simd/integer_block.h"

// A tile of the integer product: Rows rows of activations by Panels panels of 16 columns, over a run of blocks.
namespace qcore {
namespace {

template <class V, class Dot, int Rows, int Panels, int Bits>
struct IntegerTile {
  using Float = typename V::Float;
  using Code = typename Dot::Code;
  using Product = IntegerBlock<V, Dot, Rows, Panels, Bits>;
  static constexpr int kVectors = Product::kVectors, kStepK = Product::kStepK;

  struct Codes {
    const Code* first;
    std::int64_t row_stride;
    QCORE_INLINE const Code* code(int r) const { return first + r * row_stride; }
    QCORE_INLINE void advance(std::int64_t n) { first += n; }
  };

  struct Block {
    const PackedRows* rows;
    std::int64_t at;
    QCORE_INLINE std::int32_t start(int r) const { return rows->starts[at + r]; }
    QCORE_INLINE std::int32_t sum(int r) const { return rows->sums[at + r]; }
    QCORE_INLINE float scale(int r) const { return rows->scales[at + r]; }
    QCORE_INLINE float scaled_sum(int r) const { return rows->scaled_sums[at + r]; }
    QCORE_INLINE float offset(int r) const { return rows->offsets[at + r]; }
  };

  static void run(const TileArguments& t) {
    const PackedLayout& layout = *t.layout;
    const std::int64_t blocks = layout.blocks();
    const std::int64_t first_step = t.first_block * t.block_steps;
    std::int64_t ahead[Panels];
    unroll<Panels>([&](auto panel) QCORE_UNROLLED { ahead[panel.value] = t.ahead[panel.value]; });
    Codes a{static_cast<const Code*>(t.rows.codes) + first_step * kStepK, t.rows.row_stride};
    typename Product::Weights w{t.codes + first_step * PackedLayout::kStepBytes, layout.panel_bytes(), ahead};
    const typename Product::Parameters parameters{t.scales, t.offsets, t.weight_sums, blocks, t.parameters_ahead};
    Float y[Rows][kVectors];
    unroll<Rows>([&](auto r) QCORE_UNROLLED {
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        y[r.value][v.value] = t.first_block == 0 ? V::all(0.0f) : V::load(result(t, r.value, v.value));
      });
    });

    for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
      if (p == t.turn_block) unroll<Panels>([&](auto panel) QCORE_UNROLLED { ahead[panel.value] += t.turn; });
      const std::int64_t steps = p + 1 < blocks ? t.block_steps : t.last_block_steps;
      const Block block{&t.rows, p * Rows};
      Float sums[Rows][kVectors];
      Product::sum(sums, w, a, steps, block);
      w.codes += steps * PackedLayout::kStepBytes;
      a.advance(steps * kStepK);
      Product::add_terms(y, sums, parameters, p, block);
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
