#pragma once

#include "gemm/cpu/float_weights.h"
#include "gemm/cpu/tile.h"
#include "gemm/cpu/tile_table.h"
#include "numerics/single_block.h"

// Depthwise convolution: one input channel per group and one output, so that every block is one element and lanes are
// channels. What of a product is known before its tap is computed once per pixel: sA * sB, and sA * sumA for weights
// with offsets. Then a tap is one fma (two with offsets) with its code; or with its weight's sum, where the activations
// have offsets.
namespace qcore {
namespace {

template <class V>
struct Depthwise {
  using Float = typename V::Float;
  static constexpr int kVectorsPerPanel = static_cast<int>(PackedLayout::kPanelRows) / V::kLanes;

  // Rows of [plane_channels] factors, then, for weights with offsets, as many of sA * sumA.
  static void pack(const float* values, std::int64_t stride, std::int64_t count, const PackedLayout& layout, int mode,
                   const PackedRows& rows) {
    if (mode == numerics::kActivationInt8Asym)
      pack_factors<true, false>(values, stride, count, layout.n, mode, rows);
    else if (rows.codes)
      pack_factors<false, true>(values, stride, count, layout.n, mode, rows);
    else
      pack_factors<false, false>(values, stride, count, layout.n, mode, rows);
  }

  static void pack_floats(const float* values, std::int64_t stride, std::int64_t count, const PackedLayout& layout, int,
                          const PackedRows& rows) {
    char* plane = rows.data;
    for (std::int64_t first = 0; first < layout.n; first += rows.plane_channels, plane += rows.plane_bytes) {
      const std::int64_t channels = channels_of_plane(rows, first, layout.n);
      for (std::int64_t row = 0; row < count; ++row)
        memcpy(plane + row * rows.row_bytes, values + row * stride + first,
               static_cast<std::size_t>(channels) * sizeof(float));
    }
  }

  // [panels][taps][16]: the largest activation code times the weight's, or the weight itself.
  template <int Bits, bool Decode>
  QCORE_NUMERIC void weights_of(const BlockTileArguments& t, int mode, float* out) {
    using Weights = FloatWeights<V, Bits>;
    const Float largest = V::set1(static_cast<float>(numerics::activation_highest(mode)));
    for (int panel = 0; panel < t.panels; ++panel) {
      for (std::int64_t at = 0; at < t.layout->taps * kVectorsPerPanel; ++at) {
        const std::int64_t vector = panel * kVectorsPerPanel + at % kVectorsPerPanel;
        const typename V::Int stored = V::load(t.codes + panel * t.layout->panel_bytes() + at * 4 * V::kLanes);
        Float weight;
        if constexpr (Decode)
          weight = Weights::decode(stored, 0, Weights::block_of(t, static_cast<int>(vector), 0), V::nibbles(t.nibbles));
        else
          weight = V::mul(largest, V::template code_at<Bits>(stored, 0, V::nibbles(t.nibbles)));
        V::store(out, weight);
        out += V::kLanes;
      }
    }
  }

  template <bool Decode>
  static void weights(const BlockTileArguments& t, int mode, float* out) {
    if (t.layout->bits == 8)
      weights_of<8, Decode>(t, mode, out);
    else
      weights_of<4, Decode>(t, mode, out);
  }

 private:
  QCORE_NUMERIC std::int64_t channels_of_plane(const PackedRows& rows, std::int64_t first, std::int64_t all) {
    return all - first < rows.plane_channels ? all - first : rows.plane_channels;
  }

  template <bool Offsets, bool ScaledSums>
  static void pack_factors(const float* values, std::int64_t stride, std::int64_t count, std::int64_t all_channels,
                           int mode, const PackedRows& rows) {
    const Float largest = V::set1(static_cast<float>(numerics::activation_highest(mode)));
    for (std::int64_t row = 0; row < count; ++row) {
      char* data = rows.data + row * rows.row_bytes;
      for (std::int64_t first = 0; first < all_channels; first += rows.plane_channels, data += rows.plane_bytes) {
        const float* x = values + row * stride + first;
        const std::int64_t channels = channels_of_plane(rows, first, all_channels);
        // Both x's plane and the scales have room for a whole panel.
        for (std::int64_t c = 0; c < channels; c += V::kLanes) {
          const Float value =
              c + V::kLanes <= channels ? V::load(x + c) : V::load_first(x + c, static_cast<int>(channels - c));
          float* factors = reinterpret_cast<float*>(data) + c;
          if constexpr (Offsets) {
            V::store(factors, constant_offsets(value));
            continue;
          }
          const Float scale = signed_scales(value, mode);
          V::store(factors, V::mul(scale, load_parameters<V>(rows.weight_scales, first + c)));
          if constexpr (ScaledSums) V::store(reinterpret_cast<float*>(data + rows.codes) + c, V::mul(scale, largest));
        }
      }
    }
  }

  // numerics::signed_scale(), numerics::constant_offset() in each lane.
  QCORE_NUMERIC Float signed_scales(Float x, int mode) {
    if (__builtin_expect(!V::zero_or_within(x, numerics::kSmallestExactBits, numerics::kInfinityBits), 0))
      return one_by_one(x, mode);
    const float largest = static_cast<float>(numerics::activation_highest(mode));
    return numerics::quotient<V>(x, V::set1(-largest), V::set1(1.0f / largest));
  }
  QCORE_NUMERIC Float constant_offsets(Float x) {
    if (__builtin_expect(!V::zero_or_within(x, 0, numerics::kInfinityBits), 0))
      return one_by_one(x, numerics::kActivationInt8Asym);
    return V::add(x, V::set1(0.0f));
  }
  __attribute__((noinline, cold)) static Float one_by_one(Float x, int mode) {
    float values[V::kLanes];
    V::store(values, x);
    for (float& value : values)
      value = mode == numerics::kActivationInt8Asym ? numerics::constant_offset(value)
                                                    : numerics::signed_scale(value, mode);
    return V::load(values);
  }
};

template <class V, int Results, int Panels, bool Decoded>
struct DepthwiseTile {
  using Float = typename V::Float;
  static constexpr int kVectorsPerPanel = Depthwise<V>::kVectorsPerPanel, kVectors = Panels * kVectorsPerPanel;

  static void run(const BlockTileArguments& t) {
    if (t.codes_at)
      add_taps<true>(t);
    else if (t.slides)
      slide(t);
    else
      add_taps<false>(t);
  }

 private:
  // Results along a row, with windows of three columns that overlap: each pixel is loaded once per row of the kernel
  // and meets the weights of the results that see it. A result's taps come in their order all the same.
  QCORE_NUMERIC void slide(const BlockTileArguments& t) {
    constexpr int kTaps = 3;
    Float y[Results][kVectors];
    repeat<Results>([&](int r)
                        QCORE_UNROLLED { repeat<kVectors>([&](int v) QCORE_UNROLLED { y[r][v] = V::set1(0.0f); }); });
    const char* const* pixels = t.x;
    const float* w = t.weights;
    for (std::int64_t tap = 0; tap < t.layout->taps; tap += kTaps, pixels += kTaps * t.tap_stride) {
      Float weight[kTaps][kVectors];
      repeat<kTaps>([&](int column) QCORE_UNROLLED {
        repeat<kVectors>([&](int v) QCORE_UNROLLED { weight[column][v] = weight_of(t, w, v); });
        w += t.weights_tap;
      });
      // The first result sees three pixels, each later one a pixel more.
      unroll<Results + kTaps - 1>([&](auto at) QCORE_UNROLLED {
        constexpr int kTap = at.value < kTaps ? at.value : kTaps - 1;
        const char* row = t.x_offset + pixels[kTap * t.tap_stride + at.value - kTap];
        repeat<kVectors>([&](int v) QCORE_UNROLLED {
          const Float x = V::load(reinterpret_cast<const float*>(row) + v * V::kLanes);
          repeat<kTaps>([&](int column) QCORE_UNROLLED {
            const int result = at.value - column;
            if (result >= 0 && result < Results) {
              Float& total = y[result][v];
              if constexpr (Decoded)
                total = V::add(total, V::mul(x, weight[column][v]));
              else
                total = V::fma(weight[column][v], x, total);
            }
          });
        });
      });
    }
    TileTotals<V, Results, kVectors>::store(t, y);
  }

  QCORE_NUMERIC Float weight_of(const BlockTileArguments& t, const float* w, int vector) {
    return V::load(w + vector / kVectorsPerPanel * t.weights_panel + vector % kVectorsPerPanel * V::kLanes);
  }

  template <bool Offsets>
  QCORE_NUMERIC void add_taps(const BlockTileArguments& t) {
    const std::int64_t taps = t.layout->taps;
    Float y[Results][kVectors], offsets[kVectors];
    repeat<kVectors>([&](int v) QCORE_UNROLLED {
      if constexpr (Offsets) offsets[v] = load_parameters<V>(t.offsets, v * V::kLanes);
      repeat<Results>([&](int r) QCORE_UNROLLED { y[r][v] = V::set1(0.0f); });
    });
    const char* const* pixels = t.x;
    const float* w = t.weights;
    for (std::int64_t tap = 0; tap < taps; ++tap, pixels += t.tap_stride, w += t.weights_tap) {
      Float weight[kVectors];
      repeat<kVectors>([&](int v) QCORE_UNROLLED { weight[v] = weight_of(t, w, v); });
      repeat<Results>([&](int r) QCORE_UNROLLED {
        const char* row = t.x_offset + pixels[r];
        repeat<kVectors>([&](int v) QCORE_UNROLLED {
          Float& total = y[r][v];
          const Float x = V::load(reinterpret_cast<const float*>(row) + v * V::kLanes);
          if constexpr (Decoded)
            total = V::add(total, V::mul(x, weight[v]));
          else
            total = V::fma(weight[v], x, total);
          if constexpr (Offsets)
            total =
                V::fma(V::load(reinterpret_cast<const float*>(row + t.codes_at) + v * V::kLanes), offsets[v], total);
        });
      });
    }
    TileTotals<V, Results, kVectors>::store(t, y);
  }
};

template <class Vectors, bool Decoded>
struct DepthwiseTiles : PlainTiles {
  using V = Vectors;
  template <int Results, int Panels>
  using W8 = DepthwiseTile<V, Results, Panels, Decoded>;
  template <int Results, int Panels>
  using W4 = W8<Results, Panels>;
  static constexpr int kBytesPerCode = sizeof(float);
  static constexpr decltype(BlockKernels::pack) pack = Decoded ? Depthwise<V>::pack_floats : Depthwise<V>::pack;
  static constexpr decltype(BlockKernels::depthwise_weights) depthwise_weights =
      Depthwise<V>::template weights<Decoded>;
};

}  // namespace
}  // namespace qcore
