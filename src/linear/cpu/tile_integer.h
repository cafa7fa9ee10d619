#pragma once

#include "gemm/cpu/integer_block.h"
#include "linear/cpu/vtable.h"

// A tile of the integer product: Rows rows of activations by Panels panels of 16 columns, over a run of blocks.
namespace qcore {
namespace {

template <class V, class Dot, int Rows, int Panels, int Bits>
struct IntegerTile {
  using Int = typename V::Int;
  using Float = typename V::Float;
  using Code = typename Dot::Code;
  using Product = IntegerBlock<V, Dot, Rows, Panels, Bits>;
  static constexpr int kVectors = Product::kVectors, kVectorsPerPanel = Product::kVectorsPerPanel,
                       kStepK = Product::kStepK;
  static constexpr int kGroup = 4;  // steps that run_plain_row() unrolls

  struct Codes {
    const Code* first;
    std::int64_t row_stride;
    QCORE_INLINE const Code* code(int r) const { return first + r * row_stride; }
    QCORE_INLINE void advance(std::int64_t n) { first += n; }
  };

  struct Block {
    const PackedRows* rows;
    std::int64_t at;
    QCORE_INLINE std::int32_t start(int r) const { return rows->acc_init[at + r]; }
    QCORE_INLINE std::int32_t sum(int r) const { return rows->sums[at + r]; }
    QCORE_INLINE float scale(int r) const { return rows->scales[at + r]; }
    QCORE_INLINE float scaled_sum(int r) const { return rows->scaled_sums[at + r]; }
    QCORE_INLINE float offset(int r) const { return rows->offsets[at + r]; }
  };

  static void run(const TileArguments& t) {
    if constexpr (Rows == 1)
      if (is_plain_row(t)) return run_plain_row(t);
    const PackedLayout& layout = *t.layout;
    const std::int64_t blocks = layout.blocks();
    const std::int64_t first_step = t.first_block * t.block_steps;
    std::int64_t ahead[Panels];
    unroll<Panels>([&](auto panel) QCORE_UNROLLED { ahead[panel.value] = t.prefetch_distance[panel.value]; });
    Codes a{static_cast<const Code*>(t.rows.codes) + first_step * kStepK, t.rows.row_stride};
    typename Product::Weights w{t.codes + first_step * PackedLayout::kStepBytes, layout.panel_bytes(), ahead};
    const typename Product::Parameters parameters{t.scales, t.offsets, t.weight_sums, blocks, t.prefetch_parameters};
    Float y[Rows][kVectors];
    unroll<Rows>([&](auto r) QCORE_UNROLLED {
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        y[r.value][v.value] = t.first_block == 0 ? V::set1(0.0f) : V::load(result(t, r.value, v.value));
      });
    });

    for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
      if (p == t.prefetch_switch_block)
        unroll<Panels>([&](auto panel) QCORE_UNROLLED { ahead[panel.value] += t.prefetch_switch_bytes; });
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

  // Returns whether there is one row alone and a weight with fp16 scales and no offsets, whose blocks are whole groups
  // of steps: what a decoder multiplies for each token.
  static bool is_plain_row(const TileArguments& t) {
    return t.prefetch_switch_block >= 0 && t.scales.half && !t.offsets.data && !t.weight_sums &&
           t.block_steps % kGroup == 0 && t.last_block_steps == t.block_steps &&
           t.block_steps * kStepK <= Dot::kMaxBlock && t.first_block == 0 && t.end_block == t.layout->blocks();
  }

  // Computes such a row. The general loop decides for every block whether scales are fp16, whether there are offsets
  // and where it prefetches, which takes as long as the products of a single row.
  static void run_plain_row(const TileArguments& t) {
    const std::int64_t blocks = t.end_block, groups = t.block_steps / kGroup;
    const std::uint8_t* codes[Panels];
    const std::uint16_t* scales[Panels];
    unroll<Panels>([&](auto panel) QCORE_UNROLLED {
      codes[panel.value] = t.codes + panel.value * t.layout->panel_bytes();
      scales[panel.value] =
          static_cast<const std::uint16_t*>(t.scales.data) + panel.value * blocks * PackedLayout::kPanelRows;
    });
    Codes a{static_cast<const Code*>(t.rows.codes), 0};
    std::int64_t ahead = t.prefetch_distance[0];  // the same for all panels of a single tile
    Float y[kVectors];
    unroll<kVectors>([&](auto v) QCORE_UNROLLED { y[v.value] = V::set1(0.0f); });
    for (std::int64_t p = 0; p < blocks; ++p) {
      if (p == t.prefetch_switch_block) ahead += t.prefetch_switch_bytes;
      Int acc[1][kVectors];
      const Int first = V::set1(t.rows.acc_init[p]);
      unroll<kVectors>([&](auto v) QCORE_UNROLLED { acc[0][v.value] = first; });
      for (std::int64_t group = 0; group < groups; ++group) {
        unroll<kGroup>([&](auto step) QCORE_UNROLLED {
          constexpr std::int64_t kAt = step.value * PackedLayout::kStepBytes;
          Int stored[kVectors];
          unroll<Panels>([&](auto panel)
                             QCORE_UNROLLED { __builtin_prefetch(codes[panel.value] + kAt + ahead, 0, 2); });
          unroll<kVectors>([&](auto v) QCORE_UNROLLED {
            stored[v.value] = V::load(codes[v.value / kVectorsPerPanel] + kAt +
                                      v.value % kVectorsPerPanel * static_cast<int>(sizeof(Int)));
          });
          Product::multiply_step(acc, stored, a);
          a.advance(kStepK);
        });
        unroll<Panels>([&](auto panel) QCORE_UNROLLED { codes[panel.value] += kGroup * PackedLayout::kStepBytes; });
      }
      const Float row_scale = V::set1(t.rows.scales[p]);
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        const std::uint16_t* scale = scales[v.value / kVectorsPerPanel] + v.value % kVectorsPerPanel * V::kLanes;
        y[v.value] = V::fma(V::to_float(acc[0][v.value]), V::mul(row_scale, V::load_half(scale)), y[v.value]);
      });
      unroll<Panels>([&](auto panel) QCORE_UNROLLED {
        __builtin_prefetch(scales[panel.value] + t.prefetch_parameters, 0, 2);
        scales[panel.value] += PackedLayout::kPanelRows;
      });
    }
    unroll<kVectors>([&](auto v) QCORE_UNROLLED { V::store(result(t, 0, v.value), y[v.value]); });
  }

  QCORE_NUMERIC float* result(const TileArguments& t, int r, int v) {
    return t.out + r * Panels * PackedLayout::kPanelRows + v * V::kLanes;
  }
};

}  // namespace
}  // namespace qcore
