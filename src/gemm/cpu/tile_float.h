#pragma once

#include "gemm/cpu/float_weights.h"
#include "gemm/cpu/tile.h"
#include "gemm/cpu/tile_table.h"

// A tile of the product with float activations. A few rows decode the weights in registers, once for all of them; for
// many the driver has them decoded to fp32 first, once for all tiles.
namespace qcore {
namespace {

template <class Vectors, int Rows, int Panels, int Bits, bool Decoded>
struct FloatBlock {
  using V = Vectors;
  using Int = typename V::Int;
  using Float = typename V::Float;
  using Weights = FloatWeights<V, Bits>;
  static constexpr int kVectorsPerPanel = Weights::kVectorsPerPanel, kVectors = Panels * kVectorsPerPanel;
  static constexpr int kStepK = Weights::kStepK;
  static constexpr std::int64_t kStepBytes = kStepK * static_cast<std::int64_t>(sizeof(float));

  QCORE_INLINE explicit FloatBlock(const BlockTileArguments& arguments)
      : t(arguments),
        panel_bytes(arguments.panel_bytes),
        decoded_panel(arguments.decoded_steps * kStepK * PackedLayout::kPanelRows),
        decoded(static_cast<const float*>(arguments.decoded)),
        nibbles(V::nibbles(arguments.nibbles)) {}

  QCORE_INLINE void add(Float (&y)[Rows][kVectors], TileRows<Rows> rows, const std::uint8_t* w, std::int64_t p,
                        std::int64_t steps) {
    typename Weights::Block block[kVectors];
    if constexpr (!Decoded) repeat<kVectors>([&](int v) QCORE_UNROLLED { block[v] = Weights::block_of(t, v, p); });
    Float sum[Rows][kVectors];
    repeat<Rows>([&](int r)
                     QCORE_UNROLLED { repeat<kVectors>([&](int v) QCORE_UNROLLED { sum[r][v] = V::set1(0.0f); }); });
    for (std::int64_t step = steps; step > 0; --step) {
      Int stored[kVectors];
      if constexpr (!Decoded) {
        repeat<Panels>([&](int panel) QCORE_UNROLLED {
          __builtin_prefetch(w + panel * panel_bytes + t.prefetch_distance[panel], 0, 2);
        });
        repeat<kVectors>([&](int v) QCORE_UNROLLED {
          stored[v] = V::load(w + v / kVectorsPerPanel * panel_bytes + v % kVectorsPerPanel * (4 * V::kLanes));
        });
      }
      repeat<kStepK>([&](int k) QCORE_UNROLLED {
        repeat<kVectors>([&](int v) QCORE_UNROLLED {
          Float weight;
          if constexpr (Decoded)
            weight = V::load(decoded + v / kVectorsPerPanel * decoded_panel + k * PackedLayout::kPanelRows +
                             v % kVectorsPerPanel * V::kLanes);
          else
            weight = Weights::decode(stored[v], k, block[v], nibbles);
          repeat<Rows>([&](int r) QCORE_UNROLLED {
            const Float x = V::set1(rows.template values<float>(r)[k]);
            sum[r][v] = V::fma(x, weight, sum[r][v]);
          });
        });
      });
      w += PackedLayout::kStepBytes;
      if constexpr (Decoded) decoded += kStepK * PackedLayout::kPanelRows;
      rows.at += kStepBytes;
    }
    repeat<Rows>([&](int r) QCORE_UNROLLED {
      repeat<kVectors>([&](int v) QCORE_UNROLLED { y[r][v] = V::add(y[r][v], sum[r][v]); });
    });
  }

  QCORE_INLINE void next_tap() {}

 private:
  const BlockTileArguments& t;
  const std::int64_t panel_bytes, decoded_panel;
  const float* decoded;
  const Float nibbles;
};

template <class V, int Rows, int Panels, int Bits>
struct FloatTile {
  // Several tiles of a task share their rows evenly: each has at least 2, and the widest fewer panels than one alone.
  // Tiles of other sizes read the codes, which are there too.
  static constexpr bool kReadsDecoded = Rows >= 2 && Panels <= 3;

  static void run(const BlockTileArguments& t) {
    if constexpr (kReadsDecoded)
      if (t.decoded) return add_blocks<FloatBlock<V, Rows, Panels, Bits, true>, Rows>(t);
    add_blocks<FloatBlock<V, Rows, Panels, Bits, false>, Rows>(t);
  }
};

// Writes the weights of a tile's blocks, one tap's: fp32 [panels][k, padding included][16].
template <class V, int Bits>
QCORE_NUMERIC void decode_blocks(const BlockTileArguments& t, float* out) {
  using Weights = FloatWeights<V, Bits>;
  constexpr int kVectorsPerPanel = Weights::kVectorsPerPanel, kStepK = Weights::kStepK;
  const typename V::Float nibbles = V::nibbles(t.nibbles);
  for (int panel = 0; panel < t.panels; ++panel) {
    const std::uint8_t* w = t.codes + panel * t.panel_bytes;
    for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
      typename Weights::Block block[kVectorsPerPanel];
      repeat<kVectorsPerPanel>(
          [&](int v) QCORE_UNROLLED { block[v] = Weights::block_of(t, panel * kVectorsPerPanel + v, p); });
      const std::int64_t steps = p + 1 < t.blocks ? t.block_steps : t.last_block_steps;
      for (std::int64_t step = 0; step < steps; ++step, w += PackedLayout::kStepBytes) {
        __builtin_prefetch(w + t.prefetch_distance[0], 0, 2);
        repeat<kVectorsPerPanel>([&](int v) QCORE_UNROLLED {
          const typename V::Int stored = V::load(w + v * (4 * V::kLanes));
          repeat<kStepK>([&](int k) QCORE_UNROLLED {
            V::store(out + k * PackedLayout::kPanelRows + v * V::kLanes, Weights::decode(stored, k, block[v], nibbles));
          });
        });
        out += kStepK * PackedLayout::kPanelRows;
      }
    }
  }
}

template <class V>
[[maybe_unused]] static void decode_weights(const BlockTileArguments& t, void* to) {
  auto* const out = static_cast<float*>(to);
  if (t.layout->bits == 8)
    decode_blocks<V, 8>(t, out);
  else
    decode_blocks<V, 4>(t, out);
}

// Float activations only move to the places where their blocks are padded like the weight's.
[[maybe_unused]] static void pack_float_rows(const float* values, std::int64_t stride, std::int64_t count,
                                             const PackedLayout& layout, int, const PackedRows& rows) {
  const std::int64_t block_k = layout.block_first_step(1) * layout.step_k();
  for (std::int64_t row = 0; row < count; ++row) {
    float* out = reinterpret_cast<float*>(rows.data + row * rows.row_bytes);
    for (std::int64_t p = 0; p < layout.blocks(); ++p) {
      const std::int64_t length = layout.block_length(p);
      memcpy(out + p * block_k, values + row * stride + layout.block_begin(p),
             static_cast<std::size_t>(length) * sizeof(float));
      for (std::int64_t i = length; i < layout.block_steps(p) * layout.step_k(); ++i) out[p * block_k + i] = 0.0f;
    }
  }
}

template <class Vectors>
struct FloatTiles : PlainTiles {
  using V = Vectors;
  static constexpr bool kLooksUpNibbles = V::kLooksUpNibbles;
  template <int Rows, int Panels>
  using W8 = FloatTile<V, Rows, Panels, 8>;
  template <int Rows, int Panels>
  using W4 = FloatTile<V, Rows, Panels, 4>;
  static constexpr int kBytesPerCode = sizeof(float);
  static constexpr decltype(BlockKernels::pack) pack = pack_float_rows;
  static constexpr decltype(BlockKernels::decode) decode = decode_weights<V>;
};

}  // namespace
}  // namespace qcore
