#pragma once

#include "conv2d/cpu/depthwise.h"
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
  static constexpr std::int64_t kPanel = PackedLayout::kPanelRows;
  static constexpr int kVectorsPerPanel = static_cast<int>(kPanel) / V::kLanes;

  // Rows of [plane_channels] factors, then, for weights with offsets, as many of sA * sumA. `values` are of
  // rows.x_dtype.
  static void pack(const float* values, std::int64_t stride, std::int64_t count, const PackedLayout& layout, int mode,
                   const PackedRows& rows) {
    if (mode == numerics::kActivationInt8Asym)
      pack_rows<Offsets>(values, stride, count, layout.n, mode, rows);
    else if (rows.codes)
      pack_rows<ScaledSums>(values, stride, count, layout.n, mode, rows);
    else
      pack_rows<Factors>(values, stride, count, layout.n, mode, rows);
  }

  static void pack_floats(const float* values, std::int64_t stride, std::int64_t count, const PackedLayout& layout,
                          int mode, const PackedRows& rows) {
    pack_rows<Values>(values, stride, count, layout.n, mode, rows);
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
  // Vectors of x as fp32.
  struct LoadFloats {
    using Item = float;
    QCORE_NUMERIC Float load(const Item* x) { return V::load(x); }
  };
  struct LoadHalves {
    using Item = std::uint16_t;
    QCORE_NUMERIC Float load(const Item* x) { return V::load_half(x); }
  };
  struct LoadBfloats {
    using Item = std::uint16_t;
    QCORE_NUMERIC Float load(const Item* x) { return V::load_bfloat(x); }
  };

  // Packing keeps the values of x, for float activations; or sA * sB; or that and sA * sumA; or the offsets oA that
  // int8_asym gives blocks of one value.
  enum Kept { Values, Factors, ScaledSums, Offsets };

  struct Constants {
    Float negative_largest, reciprocal, largest;  // of the codes of activations
    const float* weight_scales;
    int mode;
  };

  template <Kept kept>
  static void pack_rows(const void* values, std::int64_t stride, std::int64_t count, std::int64_t channels, int mode,
                        const PackedRows& rows) {
    if (rows.x_dtype == kF32)
      pack_rows<kept, LoadFloats>(static_cast<const float*>(values), stride, count, channels, mode, rows);
    else if (rows.x_dtype == kF16)
      pack_rows<kept, LoadHalves>(static_cast<const std::uint16_t*>(values), stride, count, channels, mode, rows);
    else
      pack_rows<kept, LoadBfloats>(static_cast<const std::uint16_t*>(values), stride, count, channels, mode, rows);
  }

  template <Kept kept, class From>
  static void pack_rows(const typename From::Item* values, std::int64_t stride, std::int64_t count,
                        std::int64_t all_channels, int mode, const PackedRows& rows) {
    const float largest = static_cast<float>(numerics::activation_highest(mode));
    const Constants constants{V::set1(-largest), V::set1(1.0f / largest), V::set1(largest),
                              static_cast<const float*>(rows.weight_scales.data), mode};
    for (std::int64_t row = 0; row < count; ++row) {
      char* data = rows.data + row * rows.row_bytes;
      const typename From::Item* x = values + row * stride;
      if (!__builtin_expect(pack_row<kept, From, false>(x, all_channels, constants, data, rows), true))
        pack_row<kept, From, true>(x, all_channels, constants, data, rows);
    }
  }

  // Packs a row, and returns whether all its values are such that vectors may compute them: that is found out by the
  // way and known at the end. `careful` computes any.
  template <Kept kept, class From, bool careful>
  QCORE_NUMERIC bool pack_row(const typename From::Item* x, std::int64_t all_channels, const Constants& constants,
                              char* data, const PackedRows& rows) {
    Seen seen{V::set1(-1), V::set1(-1)};
    for (std::int64_t first = 0; first < all_channels; first += rows.plane_channels, data += rows.plane_bytes) {
      const std::int64_t left = all_channels - first;
      const std::int64_t channels = left < rows.plane_channels ? left : rows.plane_channels;
      // Both x's plane and the scales have room for a whole panel.
      std::int64_t c = 0;
      for (; c + kPanel <= channels; c += kPanel)
        repeat<kVectorsPerPanel>([&](int v) QCORE_UNROLLED {
          const std::int64_t at = c + v * V::kLanes;
          keep<kept, careful>(From::load(x + first + at), seen, data, first, at, constants, rows.codes);
        });
      for (; c < channels; c += V::kLanes) {
        const std::int64_t count = channels - c < V::kLanes ? channels - c : V::kLanes;
        typename From::Item last[V::kLanes] = {};
        memcpy(last, x + first + c, static_cast<std::size_t>(count) * sizeof *x);
        keep<kept, careful>(From::load(last), seen, data, first, c, constants, rows.codes);
      }
    }
    const std::uint32_t smallest = kept == Offsets ? 1 : numerics::kSmallestExactBits;
    return kept == Values || careful || V::within(seen.smallest, seen.largest, smallest, numerics::kInfinityBits);
  }

  // The extremes of |x|'s bits less 1, in each lane: the smallest as unsigned integers, for which zeros are large, and
  // the largest as signed ones, for which zeros are small. So zeros never count.
  struct Seen {
    typename V::Int smallest, largest;
    QCORE_INLINE void add(Float x) {
      const typename V::Int less = V::add(V::bit_and(V::as_int(x), V::set1(0x7fffffff)), V::set1(-1));
      smallest = V::min_unsigned(smallest, less);
      largest = V::max(largest, less);
    }
  };

  template <Kept kept, bool careful>
  QCORE_NUMERIC void keep(Float x, Seen& seen, char* data, std::int64_t first, std::int64_t c,
                          const Constants& constants, std::int64_t codes) {
    float* factors = reinterpret_cast<float*>(data) + c;
    if constexpr (kept == Values) {
      V::store(factors, x);
    } else if constexpr (kept == Offsets) {
      seen.add(x);
      V::store(factors, careful ? one_by_one(x, constants.mode) : V::add(x, V::set1(0.0f)));
    } else {
      seen.add(x);
      const Float scale = careful ? one_by_one(x, constants.mode)
                                  : numerics::quotient<V>(x, constants.negative_largest, constants.reciprocal);
      V::store(factors, V::mul(scale, V::load(constants.weight_scales + first + c)));
      if constexpr (kept == ScaledSums)
        V::store(reinterpret_cast<float*>(data + codes) + c, V::mul(scale, constants.largest));
    }
  }

  // numerics::signed_scale(), numerics::constant_offset() in each lane.
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

  static void run(const BlockTileArguments& arguments) {
    const auto& t = static_cast<const DepthwiseTileArguments&>(arguments);
    if (t.codes_at)
      add_taps<true>(t);
    else if (t.slides)
      slide(t);
    else
      add_taps<false>(t);
  }

 private:
  // Results along a row, with windows of three columns that overlap: each pixel is loaded once per row of the kernel
  // and meets the weights of the results that see it. A result's taps come in their order all the same. Pixels lie one
  // after the other, padding among them.
  QCORE_NUMERIC void slide(const DepthwiseTileArguments& t) {
    constexpr int kTaps = 3;
    Float y[Results][kVectors];
    repeat<Results>([&](int r)
                        QCORE_UNROLLED { repeat<kVectors>([&](int v) QCORE_UNROLLED { y[r][v] = V::set1(0.0f); }); });
    const char* const* row = t.x;
    const std::int64_t pixel_bytes = t.tap_stride;
    const float* w = t.weights;
    for (std::int64_t tap = 0; tap < t.layout->taps; tap += kTaps, ++row) {
      const char* const pixels = *row + t.x_offset;
      Float weight[kTaps][kVectors];
      repeat<kTaps>([&](int column) QCORE_UNROLLED {
        repeat<kVectors>([&](int v) QCORE_UNROLLED { weight[column][v] = weight_of(t, w, v); });
        w += t.weights_tap;
      });
      // The first result sees three pixels, each later one a pixel more.
      unroll<Results + kTaps - 1>([&](auto at) QCORE_UNROLLED {
        const char* const pixel = pixels + at.value * pixel_bytes;
        unroll<kVectors>([&](auto v) QCORE_UNROLLED {
          const Float x = V::in_register(V::load(reinterpret_cast<const float*>(pixel) + v.value * V::kLanes));
          unroll<kTaps>([&](auto column) QCORE_UNROLLED {
            constexpr int kResult = at.value - column.value;
            if constexpr (kResult >= 0 && kResult < Results) {
              Float& total = y[kResult][v.value];
              if constexpr (Decoded)
                total = V::add(total, V::mul(x, weight[column.value][v.value]));
              else
                total = V::fma(weight[column.value][v.value], x, total);
            }
          });
        });
      });
    }
    store(t, y);
  }

  QCORE_NUMERIC Float weight_of(const DepthwiseTileArguments& t, const float* w, int vector) {
    return V::load(w + vector / kVectorsPerPanel * t.weights_panel + vector % kVectorsPerPanel * V::kLanes);
  }

  // Finishes the totals and stores them in y's dtype.
  QCORE_NUMERIC void store(const DepthwiseTileArguments& t, Float (&y)[Results][kVectors]) {
    if (t.out_dtype == kF32) return TileTotals<V, Results, kVectors>::store(t, y);
    TileTotals<V, Results, kVectors>::finish(t, y);
    auto* const out = reinterpret_cast<std::uint16_t*>(t.out);
    if (t.out_dtype == kF16)
      repeat<Results>([&](int r) QCORE_UNROLLED {
        repeat<kVectors>([&](int v) QCORE_UNROLLED { V::store_half(out + r * t.out_stride + v * V::kLanes, y[r][v]); });
      });
    else
      repeat<Results>([&](int r) QCORE_UNROLLED { store_bfloats(out + r * t.out_stride, y[r]); });
  }

  QCORE_NUMERIC void store_bfloats(std::uint16_t* out, const Float (&y)[kVectors]) {
    if constexpr (kVectors % 2 == 0 && V::kStoresPairs)
      repeat<kVectors / 2>([&](int i)
                               QCORE_UNROLLED { V::store_bfloats(out + 2 * i * V::kLanes, y[2 * i], y[2 * i + 1]); });
    else
      repeat<kVectors>([&](int v) QCORE_UNROLLED { V::store_bfloat(out + v * V::kLanes, y[v]); });
  }

  template <bool Offsets>
  QCORE_NUMERIC void add_taps(const DepthwiseTileArguments& t) {
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
    store(t, y);
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
