#pragma once

#include <immintrin.h>

#include "gemm/cpu/amx/tiles.h"

// Integer products on AMX: activations and weights are signed bytes.
namespace qcore {
namespace {

struct AmxBytes {
  using Sum = std::int32_t;
  static constexpr std::int64_t kCodeBytes = 1;
  static constexpr bool kRowScales = true, kMasksEnds = false, kRepairs = false;

  template <int sums, int activations, int weights>
  QCORE_NUMERIC void multiply() {
    multiply_tiles<sums, activations, weights>();
  }

  QCORE_NUMERIC __m512 load_sums(const Sum* sums) { return Avx512::to_float(Avx512::load(sums)); }
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
