#pragma once

#include "conv2d/tile_kernels.h"
#include "numerics/single_block.h"
#include "simd/float_weights.h"

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

  // Rows of [channels] factors, then, for weights with offsets, [channels] of sA * sumA.
  static void pack(const float* values, std::int64_t stride, std::int64_t count, const PackedLayout& layout, int mode,
                   const PixelRows& rows) {
    const std::int64_t channels = layout.n;
    const float largest = static_cast<float>(numerics::activation_highest(mode));
    for (std::int64_t row = 0; row < count; ++row) {
      const float* x = values + row * stride;
      char* data = rows.data + row * rows.row_bytes;
      float* factors = reinterpret_cast<float*>(data);
      float* scaled_sums = reinterpret_cast<float*>(data + rows.codes);
      if (mode == numerics::kActivationInt8Asym) {
        for (std::int64_t c = 0; c < channels; ++c) factors[c] = numerics::constant_offset(x[c]);
        continue;
      }
      for (std::int64_t c = 0; c < channels; ++c) factors[c] = numerics::signed_scale(x[c], mode);
      if (rows.codes)
        for (std::int64_t c = 0; c < channels; ++c) scaled_sums[c] = factors[c] * largest;
      std::int64_t c = 0;
      for (; c + V::kLanes <= channels; c += V::kLanes)
        V::store(factors + c, V::mul(V::load(factors + c), load_parameters<V>(rows.weight_scales, c)));
      if (c < channels) {  // both have room for a whole panel
        V::store(factors + c, V::mul(V::load_first(factors + c, static_cast<int>(channels - c)),
                                     load_parameters<V>(rows.weight_scales, c)));
      }
    }
  }

  static void pack_floats(const float* values, std::int64_t stride, std::int64_t count, const PackedLayout& layout, int,
                          const PixelRows& rows) {
    for (std::int64_t row = 0; row < count; ++row)
      memcpy(rows.data + row * rows.row_bytes, values + row * stride,
             static_cast<std::size_t>(layout.n) * sizeof(float));
  }

  // [panels][taps][16]: the largest activation code times the weight's, or the weight itself.
  template <int Bits, bool Decode>
  QCORE_NUMERIC void weights_of(const ConvTileArguments& t, int mode, float* out) {
    using Weights = FloatWeights<V, Bits>;
    const Float largest = V::all(static_cast<float>(numerics::activation_highest(mode)));
    for (int panel = 0; panel < t.panels; ++panel) {
      for (std::int64_t at = 0; at < t.layout->taps * kVectorsPerPanel; ++at) {
        const std::int64_t vector = panel * kVectorsPerPanel + at % kVectorsPerPanel;
        const typename V::Int stored = V::load(t.codes + panel * t.layout->panel_bytes() + at * 4 * V::kLanes);
        Float weight;
        if constexpr (Decode)
          weight = Weights::template decode<0>(stored,
                                               Weights::block_of(t.scales, t.offsets, 1, static_cast<int>(vector), 0));
        else
          weight = V::mul(largest, V::template code_at<Bits, 0>(stored));
        V::store(out, weight);
        out += V::kLanes;
      }
    }
  }

  template <bool Decode>
  static void weights(const ConvTileArguments& t, int mode, float* out) {
    if (t.layout->bits == 8)
      weights_of<8, Decode>(t, mode, out);
    else
      weights_of<4, Decode>(t, mode, out);
  }
};

template <class V, int Results, int Panels, bool Decoded>
struct DepthwiseTile {
  using Float = typename V::Float;
  static constexpr int kVectorsPerPanel = Depthwise<V>::kVectorsPerPanel, kVectors = Panels * kVectorsPerPanel;

  static void run(const ConvTileArguments& t) {
    if (t.codes_at)
      add_taps<true>(t);
    else
      add_taps<false>(t);
  }

 private:
  template <bool Offsets>
  QCORE_NUMERIC void add_taps(const ConvTileArguments& t) {
    const std::int64_t taps = t.layout->taps;
    Float y[Results][kVectors], offsets[kVectors];
    unroll<kVectors>([&](auto v) QCORE_UNROLLED {
      if constexpr (Offsets) offsets[v.value] = load_parameters<V>(t.offsets, v.value * V::kLanes);
      unroll<Results>([&](auto r) QCORE_UNROLLED { y[r.value][v.value] = V::all(0.0f); });
    });
    const std::int32_t* pixels = t.pixels;
    const float* w = t.weights;
    for (std::int64_t tap = 0; tap < taps; ++tap, pixels += t.tap_stride, w += t.weights_tap) {
      Float weight[kVectors];
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        weight[v.value] =
            V::load(w + v.value / kVectorsPerPanel * t.weights_panel + v.value % kVectorsPerPanel * V::kLanes);
      });
      unroll<Results>([&](auto r) QCORE_UNROLLED {
        const char* row = t.rows + pixels[r.value] * t.pixel_bytes;
        unroll<kVectors>([&](auto v) QCORE_UNROLLED {
          Float& total = y[r.value][v.value];
          const Float x = V::load(reinterpret_cast<const float*>(row) + v.value * V::kLanes);
          if constexpr (Decoded)
            total = V::add(total, V::mul(x, weight[v.value]));
          else
            total = V::fma(weight[v.value], x, total);
          if constexpr (Offsets)
            total = V::fma(V::load(reinterpret_cast<const float*>(row + t.codes_at) + v.value * V::kLanes),
                           offsets[v.value], total);
        });
      });
    }
    unroll<Results>([&](auto r) QCORE_UNROLLED {
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        V::store(t.out + r.value * Panels * PackedLayout::kPanelRows + v.value * V::kLanes, y[r.value][v.value]);
      });
    });
  }
};

}  // namespace
}  // namespace qcore
