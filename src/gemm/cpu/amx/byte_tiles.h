#pragma once

#include <immintrin.h>

#include "gemm/cpu/amx/tiles.h"

// Integer products on AMX: weights are signed bytes, activations too or, of 16 bits, a signed byte and an unsigned one.
namespace qcore {
namespace {

struct AmxBytes {
  using Sum = std::int32_t;
  static constexpr std::int64_t kCodeBytes = 1;
  static constexpr int kPlanes = 1;
  static constexpr bool kRowScales = true, kMasksEnds = false, kRepairs = false;

  template <int sums, int activations, int weights>
  QCORE_NUMERIC void multiply() {
    multiply_tiles<sums, activations, weights>();
  }

  template <int>
  QCORE_NUMERIC __m512 load_sums(const Sum* sums) {
    return Avx512::to_float(Avx512::load(sums));
  }
};

// The longest block whose sums of codes of 16 bits fit in int32: 511 * 2^15 * 2^7 < 2^31.
constexpr std::int64_t kLongestWordSum = 511;

// Codes of 16 bits are 256 * upper + lower, of which the upper byte is signed and the lower one is not. The sums of
// both fit in int32 whatever the block, because 65,536 * 255 * 128 < 2^31. In a block of more than kLongestWordSum k
// their total is below 2^38 in magnitude: doubles hold it exactly, and it is rounded once.
template <bool Long>
struct AmxWords {
  using Sum = std::int32_t;
  static constexpr std::int64_t kCodeBytes = 1;
  static constexpr int kPlanes = 2;
  static constexpr bool kRowScales = true, kMasksEnds = false, kRepairs = false;

  template <int sums, int activations, int weights>
  QCORE_NUMERIC void multiply() {
    multiply_tiles<sums, activations, weights, activations == 4>();
  }

  template <int next>
  QCORE_NUMERIC __m512 load_sums(const Sum* sums) {
    if constexpr (Long) {
      return _mm512_insertf32x8(_mm512_castps256_ps512(load_eight<next>(sums)), load_eight<next>(sums + 8), 1);
    } else {
      const __m512i upper = Avx512::shift_left_32(Avx512::load(sums), 8);
      return Avx512::to_float(Avx512::add(upper, Avx512::load(sums + next)));
    }
  }

 private:
  template <int next>
  QCORE_NUMERIC __m256 load_eight(const Sum* sums) {
    const auto load = [](const Sum* from) QCORE_UNROLLED {
      return _mm512_cvtepi32_pd(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    };
    return _mm512_cvtpd_ps(_mm512_fmadd_pd(_mm512_set1_pd(256.0), load(sums), load(sums + next)));
  }
};

[[maybe_unused]] static void run_word_tile(const BlockTileArguments& t) {
  const std::int64_t longest = t.blocks > 0 ? t.layout->block_length(0) : 0;
  longest <= kLongestWordSum ? run_amx_tile_of_size<AmxWords<false>>(t) : run_amx_tile_of_size<AmxWords<true>>(t);
}

// Places codes of 16 bits as AmxWords reads them, and nothing behind the block.
struct StoreBytePlanes {
  QCORE_NUMERIC void store(std::int16_t* block, std::int64_t i, std::int64_t padded, __m512i codes) {
    // PackRows exchanges the second and the third of every four words, for dot products of words; this undoes it.
    codes = _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(codes, 0xd8), 0xd8);
    char* const upper = reinterpret_cast<char*>(block) + i;
    const std::int64_t left = padded - i;
    const __mmask32 inside = left < 32 ? (__mmask32{1} << left) - 1 : ~__mmask32{0};
    _mm256_mask_storeu_epi8(upper, inside, _mm512_cvtepi16_epi8(_mm512_srli_epi16(codes, 8)));
    _mm256_mask_storeu_epi8(upper + padded, inside, _mm512_cvtepi16_epi8(codes));
  }
};

// Writes signed codes, [panels][taps][blocks][runs][k / 4][16 columns][4 k], with zeros behind a block's end: a tile
// then multiplies what lies behind that end in a row of activations by zero.
[[maybe_unused]] static void decode_bytes(const BlockTileArguments& t, void* out) {
  const AmxRuns<AmxBytes> runs(t);
  const std::int64_t rows_per_run = runs.k / 4, taps = t.layout->taps;
  const bool wide = t.layout->bits == 8;
  alignas(16) std::int8_t numbers[16];
  for (int u = 0; u < 16; ++u) numbers[u] = static_cast<std::int8_t>(t.nibbles[u]);
  const __m512i table = Avx512::load_table(numbers), low = _mm512_set1_epi8(15), sign = _mm512_set1_epi8(-128);
  auto* to = static_cast<std::int8_t*>(out);
  for (int panel = 0; panel < t.panels; ++panel) {
    const std::uint8_t* w = t.codes + panel * t.panel_bytes;
    for (std::int64_t tap = 0; tap < taps; ++tap)
      for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
        const std::int64_t steps = p + 1 < t.blocks ? t.block_steps : t.last_block_steps;
        std::int8_t* const end = to + runs.of_block(t, p) * rows_per_run * PackedLayout::kStepBytes;
        for (std::int64_t step = 0; step < steps; ++step, w += PackedLayout::kStepBytes) {
          const __m512i stored = _mm512_loadu_si512(w);
          if (wide) {
            _mm512_store_si512(to, _mm512_xor_si512(stored, sign));
            to += PackedLayout::kStepBytes;
            continue;
          }
          _mm512_store_si512(to, Avx512::look_up(table, _mm512_and_si512(stored, low)));
          const __m512i high = _mm512_and_si512(_mm512_srli_epi16(stored, 4), low);
          _mm512_store_si512(to + PackedLayout::kStepBytes, Avx512::look_up(table, high));
          to += 2 * PackedLayout::kStepBytes;
        }
        for (; to < end; to += PackedLayout::kStepBytes) _mm512_store_si512(to, _mm512_setzero_si512());
        to = end;
      }
  }
}

}  // namespace
}  // namespace qcore
