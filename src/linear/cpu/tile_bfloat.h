#pragma once

#include <immintrin.h>

#include "gemm/cpu/tile_parameters.h"
#include "linear/cpu/vtable.h"
#include "simd/unroll.h"
#include "simd/vector_avx512.h"

// A tile of the product with bf16 activations: codes are exact in bf16, so that its dot products are of the codes
// themselves, and a block's sum is scaled once. An offset multiplies the sum of the block's activations.
namespace qcore {
namespace {

// A dot product takes two neighbors of x. In every four k they are 0 and 2, then 1 and 3: the order in which the bytes
// of a stored word come apart most cheaply.
constexpr int kBfloatOrder[4] = {0, 2, 1, 3};

template <int Rows, int Panels, int Bits>
struct BfloatTile {
  static constexpr int kQuads = Bits == 8 ? 1 : 2;

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
    const __m512i first = _mm512_castps_si512(Avx512::code_at<8, 0>(stored));
    const __m512i second = _mm512_castps_si512(Avx512::code_at<8, 16>(stored));
    constexpr int kOrOfAnd = 0xf8;  // a | (b & c)
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(first, 16), second,
                                     _mm512_set1_epi32(static_cast<int>(0xffff0000u)), kOrOfAnd);
  }

  // Assembly for the same reasons as in linear_avx512vnni.cpp.
  struct Pair {
    std::uint16_t values[2];
  };
  QCORE_NUMERIC void multiply(__m512& sum, __m512i w, const std::uint16_t* a) {
    asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Pair*>(a)));
  }

  static void run(const TileArguments& t) {
    const PackedLayout& layout = *t.layout;
    const std::int64_t blocks = layout.blocks(), panel_bytes = layout.panel_bytes();
    const std::int64_t first_step = t.first_block * t.block_steps;
    const auto* a = static_cast<const std::uint16_t*>(t.rows.codes) + first_step * 4 * kQuads;
    const std::uint8_t* w = t.codes + first_step * PackedLayout::kStepBytes;
    alignas(64) std::uint16_t entries[32];
    for (int i = 0; i < 32; ++i)
      entries[i] = static_cast<std::uint16_t>(numerics::float_bits(static_cast<float>(i % 16 - 8)) >> 16);
    const __m512i table = _mm512_load_si512(entries);
    __m512 y[Rows][Panels];
    unroll<Rows>([&](auto r) QCORE_UNROLLED {
      unroll<Panels>([&](auto v) QCORE_UNROLLED {
        y[r.value][v.value] = t.first_block == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(result(t, r.value, v.value));
      });
    });

    for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
      __m512 sum[Rows][Panels];
      unroll<Rows>([&](auto r) QCORE_UNROLLED {
        unroll<Panels>([&](auto v) QCORE_UNROLLED { sum[r.value][v.value] = _mm512_setzero_ps(); });
      });
      const std::int64_t steps = p + 1 < blocks ? t.block_steps : t.last_block_steps;
      for (std::int64_t step = 0; step < steps; ++step) {
        unroll<Panels>([&](auto v) QCORE_UNROLLED {
          const std::uint8_t* from = w + v.value * panel_bytes;
          __builtin_prefetch(from + t.prefetch_distance[v.value], 0, 2);
          const __m512i stored = _mm512_loadu_si512(from);
          unroll<kQuads>([&](auto quad) QCORE_UNROLLED {
            const Codes codes = codes_of(stored, quad.value, table);
            unroll<Rows>([&](auto r) QCORE_UNROLLED {
              const std::uint16_t* x = a + r.value * t.rows.row_stride + 4 * quad.value;
              multiply(sum[r.value][v.value], codes.first, x);
              multiply(sum[r.value][v.value], codes.second, x + 2);
            });
          });
        });
        w += PackedLayout::kStepBytes;
        a += 4 * kQuads;
      }
      unroll<Panels>([&](auto v) QCORE_UNROLLED {
        const std::int64_t at = (v.value * blocks + p) * PackedLayout::kPanelRows;
        const __m512 scale = load_parameters<Avx512>(t.scales, at);
        unroll<Rows>([&](auto r) QCORE_UNROLLED {
          y[r.value][v.value] = _mm512_fmadd_ps(sum[r.value][v.value], scale, y[r.value][v.value]);
        });
        if (t.offsets.data) {
          const __m512 offset = load_parameters<Avx512>(t.offsets, at);
          unroll<Rows>([&](auto r) QCORE_UNROLLED {
            const __m512 x_sum = _mm512_set1_ps(t.rows.scaled_sums[p * Rows + r.value]);
            y[r.value][v.value] = _mm512_fmadd_ps(x_sum, offset, y[r.value][v.value]);
          });
        }
      });
    }
    unroll<Rows>([&](auto r) QCORE_UNROLLED {
      unroll<Panels>([&](auto v)
                         QCORE_UNROLLED { _mm512_storeu_ps(result(t, r.value, v.value), y[r.value][v.value]); });
    });
  }

  QCORE_NUMERIC float* result(const TileArguments& t, int r, int v) {
    return t.out + (r * Panels + v) * PackedLayout::kPanelRows;
  }
};

// bf16 values as they are, in the tile's order, and the sum of each block.
[[maybe_unused]] static void pack_bfloat_row(const float* values, const PackedLayout& layout, int, int slot,
                                             const PackedRows& rows) {
  const std::int64_t block_k = layout.block_first_step(1) * layout.step_k();
  std::uint16_t* out = static_cast<std::uint16_t*>(rows.codes) + slot * rows.row_stride;
  for (std::int64_t p = 0; p < layout.blocks(); ++p) {
    const std::int64_t length = layout.block_length(p), padded = layout.block_steps(p) * layout.step_k();
    const float* x = values + layout.block_begin(p);
    float sum = 0.0f;
    for (std::int64_t i = 0; i < length; ++i) sum += x[i];
    for (std::int64_t i = 0; i < padded; ++i) {
      const std::int64_t k = i / 4 * 4 + kBfloatOrder[i % 4];
      out[p * block_k + i] = k < length ? static_cast<std::uint16_t>(numerics::float_bits(x[k]) >> 16) : 0;
    }
    rows.scaled_sums[p * rows.rows + slot] = sum;
  }
}

}  // namespace
}  // namespace qcore
