#pragma once

#include <immintrin.h>

#include "gemm/cpu/tile.h"
#include "gemm/cpu/tile_table.h"
#include "simd/vector_avx512.h"

// A tile of the product with bf16 activations: codes are exact in bf16, so that its dot products are of the codes
// themselves, and a block's sum is scaled once. An offset multiplies the sum of the block's activations.
namespace qcore {
namespace {

// A dot product takes two neighbors of x. In every four k they are 0 and 2, then 1 and 3: the order in which the bytes
// of a stored word come apart most cheaply.
constexpr int kBfloatOrder[4] = {0, 2, 1, 3};

template <int Rows, int Panels, int Bits>
struct BfloatBlock {
  using V = Avx512;
  static constexpr int kQuads = Bits == 8 ? 1 : 2, kVectors = Panels;
  static constexpr std::int64_t kStepBytes = 4 * kQuads * static_cast<std::int64_t>(sizeof(std::uint16_t));

  // Two dot products' worth of weights.
  struct Codes {
    __m512i first, second;
  };

  // Codes of 4 bits are looked up; `half` 0 takes the low nibbles. A word's index has 5 bits, so the table is there
  // twice and the bit above the nibble does not matter.
  QCORE_NUMERIC Codes codes_of(__m512i stored, int half, __m512i table) {
    if constexpr (Bits == 4) {
      const __m512i even = half ? _mm512_srli_epi16(stored, 4) : stored;
      const __m512i odd = _mm512_srli_epi16(stored, half ? 12 : 8);
      return {_mm512_permutexvar_epi16(even, table), _mm512_permutexvar_epi16(odd, table)};
    } else {
      return {pair(stored), pair(_mm512_srli_epi32(stored, 8))};
    }
  }

  // Bytes 0 and 2 of each word of 32 bits, less 128, as bf16: eight bits are exact in the upper half of a float.
  QCORE_NUMERIC __m512i pair(__m512i stored) {
    const __m512i first = _mm512_castps_si512(Avx512::code_at<8>(stored, 0, __m512{}));
    const __m512i second = _mm512_castps_si512(Avx512::code_at<8>(stored, 16, __m512{}));
    constexpr int kOrOfAnd = 0xf8;  // a | (b & c)
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(first, 16), second,
                                     _mm512_set1_epi32(static_cast<int>(0xffff0000u)), kOrOfAnd);
  }

  // Assembly for the same reasons as in avx512/gemm_avx512_int8.cpp.
  struct Pair {
    std::uint16_t values[2];
  };
  QCORE_NUMERIC void multiply(__m512& sum, __m512i w, const std::uint16_t* a) {
    asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Pair*>(a)));
  }

  QCORE_INLINE explicit BfloatBlock(const BlockTileArguments& arguments)
      : t(arguments), blocks(arguments.blocks), panel_bytes(arguments.panel_bytes) {
    alignas(64) std::uint16_t entries[32];
    for (int i = 0; i < 32; ++i)
      entries[i] = static_cast<std::uint16_t>(numerics::float_bits(arguments.nibbles[i % 16]) >> 16);
    table = _mm512_load_si512(entries);
  }

  QCORE_INLINE void add(__m512 (&y)[Rows][Panels], TileRows<Rows> rows, const std::uint8_t* w, std::int64_t p,
                        std::int64_t steps) const {
    __m512 sum[Rows][Panels];
    repeat<Rows>(
        [&](int r) QCORE_UNROLLED { repeat<Panels>([&](int v) QCORE_UNROLLED { sum[r][v] = _mm512_setzero_ps(); }); });
    for (std::int64_t step = 0; step < steps; ++step) {
      repeat<Panels>([&](int v) QCORE_UNROLLED {
        const std::uint8_t* from = w + v * panel_bytes;
        __builtin_prefetch(from + t.prefetch_distance[v], 0, 2);
        const __m512i stored = _mm512_loadu_si512(from);
        repeat<kQuads>([&](int quad) QCORE_UNROLLED {
          const Codes codes = codes_of(stored, quad, table);
          repeat<Rows>([&](int r) QCORE_UNROLLED {
            const std::uint16_t* x = rows.template values<std::uint16_t>(r) + 4 * quad;
            multiply(sum[r][v], codes.first, x);
            multiply(sum[r][v], codes.second, x + 2);
          });
        });
      });
      w += PackedLayout::kStepBytes;
      rows.at += kStepBytes;
    }
    repeat<Panels>([&](int v) QCORE_UNROLLED {
      const std::int64_t at = parameters_at(t, v, p);
      const __m512 scale = load_parameters<Avx512>(t.scales, at);
      repeat<Rows>([&](int r) QCORE_UNROLLED { y[r][v] = _mm512_fmadd_ps(sum[r][v], scale, y[r][v]); });
      if (t.offsets.data) {
        const __m512 offset = load_parameters<Avx512>(t.offsets, at);
        repeat<Rows>([&](int r) QCORE_UNROLLED {
          const __m512 x_sum = _mm512_set1_ps(rows.template parameter<float>(r, PackedRows::kScaledSum, blocks, p));
          y[r][v] = _mm512_fmadd_ps(x_sum, offset, y[r][v]);
        });
      }
    });
  }

  QCORE_INLINE void next_tap() {}

 private:
  const BlockTileArguments& t;
  const std::int64_t blocks, panel_bytes;
  __m512i table;
};

template <int Rows, int Panels, int Bits>
struct BfloatTile {
  static void run(const BlockTileArguments& t) { add_blocks<BfloatBlock<Rows, Panels, Bits>, Rows>(t); }
};

// bf16 values as they are, in the tile's order, and the sum of each block.
[[maybe_unused]] static void pack_bfloat_rows(const float* values, std::int64_t stride, std::int64_t count,
                                              const PackedLayout& layout, int, const PackedRows& rows) {
  const std::int64_t blocks = layout.blocks(), block_k = layout.block_first_step(1) * layout.step_k();
  for (std::int64_t row = 0; row < count; ++row) {
    char* data = rows.data + row * rows.row_bytes;
    auto* out = reinterpret_cast<std::uint16_t*>(data + rows.codes);
    auto* sums = reinterpret_cast<float*>(data) + PackedRows::kScaledSum * blocks;
    for (std::int64_t p = 0; p < blocks; ++p) {
      const std::int64_t length = layout.block_length(p), padded = layout.block_steps(p) * layout.step_k();
      const float* x = values + row * stride + layout.block_begin(p);
      float sum = 0.0f;
      for (std::int64_t i = 0; i < length; ++i) sum += x[i];
      for (std::int64_t i = 0; i < padded; ++i) {
        const std::int64_t k = i / 4 * 4 + kBfloatOrder[i % 4];
        out[p * block_k + i] = k < length ? static_cast<std::uint16_t>(numerics::float_bits(x[k]) >> 16) : 0;
      }
      sums[p] = sum;
    }
  }
}

struct BfloatTiles : PlainTiles {
  using V = Avx512;
  static constexpr bool kLooksUpNibbles = true;
  template <int Rows, int Panels>
  using W8 = BfloatTile<Rows, Panels, 8>;
  template <int Rows, int Panels>
  using W4 = BfloatTile<Rows, Panels, 4>;
  static constexpr int kBytesPerCode = sizeof(std::uint16_t);
  static constexpr decltype(BlockKernels::pack) pack = pack_bfloat_rows;
};

}  // namespace
}  // namespace qcore
