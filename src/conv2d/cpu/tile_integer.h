#pragma once

#include "conv2d/cpu/tile_store.h"
#include "conv2d/cpu/vtable.h"
#include "gemm/cpu/integer_block.h"

// A tile of the integer convolution: Results pixels by Panels panels of 16 channels, over all taps and blocks, the
// totals in registers.
namespace qcore {
namespace {

template <class V, class Dot, int Results, int Panels, int Bits>
struct ConvIntegerTile {
  using Float = typename V::Float;
  using Code = typename Dot::Code;
  using Product = IntegerBlock<V, Dot, Results, Panels, Bits>;
  static constexpr int kVectors = Product::kVectors, kStepK = Product::kStepK;

  using Rows = const char* [Results];

  struct Codes {
    const Rows& rows;
    std::int64_t at;  // in bytes
    QCORE_INLINE const Code* code(int r) const { return reinterpret_cast<const Code*>(rows[r] + at); }
    QCORE_INLINE void advance(std::int64_t n) { at += n * static_cast<std::int64_t>(sizeof(Code)); }
  };

  struct Block {
    const Rows& rows;
    std::int64_t p, blocks;
    template <class T>
    QCORE_INLINE T parameter(int r, PixelRows::Parameter which) const {
      T value;
      memcpy(&value, rows[r] + (which * blocks + p) * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
      return value;
    }
    QCORE_INLINE std::int32_t start(int r) const { return parameter<std::int32_t>(r, PixelRows::kStart); }
    QCORE_INLINE std::int32_t sum(int r) const { return parameter<std::int32_t>(r, PixelRows::kSum); }
    QCORE_INLINE float scale(int r) const { return parameter<float>(r, PixelRows::kScale); }
    QCORE_INLINE float scaled_sum(int r) const { return parameter<float>(r, PixelRows::kScaledSum); }
    QCORE_INLINE float offset(int r) const { return parameter<float>(r, PixelRows::kOffset); }
  };

  static void run(const ConvTileArguments& t) {
    const PackedLayout& layout = *t.layout;
    const std::int64_t blocks = layout.blocks();
    const std::int64_t block_steps = layout.block_first_step(1), last_steps = layout.block_steps(blocks - 1);
    // A panel's weights follow each other over all taps.
    constexpr std::int64_t kAhead = 1024;
    std::int64_t ahead[Panels];
    unroll<Panels>([&](auto panel) QCORE_UNROLLED { ahead[panel.value] = kAhead; });
    typename Product::Weights w{t.codes, layout.panel_bytes(), ahead};
    typename Product::Parameters parameters{t.scales, t.offsets, t.weight_sums, blocks, 0};
    Float y[Results][kVectors];
    unroll<Results>([&](auto r) QCORE_UNROLLED {
      unroll<kVectors>([&](auto v) QCORE_UNROLLED { y[r.value][v.value] = V::set1(0.0f); });
    });

    const std::int64_t* pixels = t.pixels;
    for (std::int64_t tap = 0; tap < layout.taps; ++tap, pixels += t.tap_stride) {
      Rows rows;
      unroll<Results>([&](auto r) QCORE_UNROLLED { rows[r.value] = t.rows + pixels[r.value]; });
      Codes a{rows, t.codes_at};
      for (std::int64_t p = 0; p < blocks; ++p) {
        const std::int64_t steps = p + 1 < blocks ? block_steps : last_steps;
        const Block block{rows, p, blocks};
        Float sums[Results][kVectors];
        Product::sum(sums, w, a, steps, block);
        w.codes += steps * PackedLayout::kStepBytes;
        a.advance(steps * kStepK);
        Product::add_terms(y, sums, parameters, p, block);
      }
      if (parameters.weight_sums) parameters.weight_sums += layout.parameter_count();
    }
    store_totals<V, Panels>(t, y);
  }
};

}  // namespace
}  // namespace qcore
