#pragma once

#include <immintrin.h>

#include "gemm/cpu/amx/tiles.h"

// Float products with bf16 activations on AMX: codes are exact in bf16, so that tile registers multiply the codes
// themselves, and a block's sum is scaled once. An offset multiplies the sum of the block's activations.
namespace qcore {
namespace {

struct AmxBfloats {
  using Sum = float;
  static constexpr std::int64_t kCodeBytes = sizeof(std::uint16_t);
  static constexpr int kPlanes = 1;
  // Behind a block's end there may be infinities, of which a product with zero is a NaN.
  static constexpr bool kRowScales = false, kMasksEnds = true, kRepairs = true;

  template <int sums, int activations, int weights>
  QCORE_NUMERIC void multiply() {
    multiply_bfloat_tiles<sums, activations, weights>();
  }

  template <int>
  QCORE_NUMERIC __m512 load_sums(const Sum* sums) {
    return Avx512::load(sums);
  }

  // Sums of codes overflow where those of weights do not, and an infinity times the code 0 is a NaN whatever the
  // offset: what is not finite is computed again with the weights themselves.
  QCORE_NUMERIC void repair(const BlockTileArguments& t, int row, int panel, float* totals) {
    constexpr int kNotFinite = 0x99;  // quiet NaN, infinity, -infinity, signaling NaN
    const __mmask16 lanes = _mm512_fpclass_ps_mask(Avx512::load(totals), kNotFinite);
    if (__builtin_expect(lanes != 0, 0)) recompute(t, row, panel, lanes, totals);
  }

 private:
  // Adds the blocks as the reference does, from the totals before them on.
  [[gnu::noinline]] static void recompute(const BlockTileArguments& t, int row, int panel, __mmask16 lanes,
                                          float* totals) {
    const AmxRuns<AmxBfloats> runs(t);
    const auto* w = static_cast<const char*>(t.decoded) + panel * decoded_panel_bytes<AmxBfloats>(t);
    __m512 total = t.first_block == 0 ? _mm512_setzero_ps() : Avx512::load(t.out + row * t.out_stride + 16 * panel);
    for (std::int64_t tap = 0; tap < t.layout->taps; ++tap)
      for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
        const char* const x = t.x[tap * t.tap_stride + row] + t.x_offset + t.codes_at + p * runs.block_k;
        total = Avx512::add(total, block_sum(t, panel, p, x, w));
        w += runs.of_block(t, p) * runs.weight_bytes();
      }
    Avx512::store(totals, _mm512_mask_mov_ps(Avx512::load(totals), lanes, total));
  }

  QCORE_NUMERIC __m512 block_sum(const BlockTileArguments& t, int panel, std::int64_t p, const char* x, const char* w) {
    const std::int64_t at = parameters_at(t, panel, p), length = t.layout->block_length(p);
    const __m512 scale = load_parameters<Avx512>(t.scales, at);
    const __m512 offset = t.offsets.data ? load_parameters<Avx512>(t.offsets, at) : _mm512_setzero_ps();
    __m512 sum = _mm512_setzero_ps();
    for (std::int64_t k = 0; k < length; ++k) {
      std::uint16_t value;
      memcpy(&value, x + 2 * k, sizeof value);
      const __m512i pairs = _mm512_loadu_si512(w + k / 2 * PackedLayout::kStepBytes);
      const __m512i code = _mm512_slli_epi32(k % 2 ? _mm512_srli_epi32(pairs, 16) : pairs, 16);
      const __m512 weight = Avx512::fma(scale, _mm512_castsi512_ps(code), offset);
      sum = Avx512::fma(Avx512::set1(numerics::bfloat_to_float(value)), weight, sum);
    }
    return sum;
  }
};

// Writes codes as bf16, two k of each column next to each other.
struct BfloatDecoder {
  __m512i table;

  explicit BfloatDecoder(const float* nibbles) {
    // A word's index has 5 bits, so the table is there twice and the bit above the nibble does not matter.
    alignas(64) std::uint16_t entries[32];
    for (int i = 0; i < 32; ++i) entries[i] = static_cast<std::uint16_t>(numerics::float_bits(nibbles[i % 16]) >> 16);
    table = _mm512_load_si512(entries);
  }

  // Returns how many bytes one step's codes take.
  template <int Bits>
  QCORE_INLINE std::int64_t write_step(__m512i stored, char* to) const {
    if constexpr (Bits == 8) {
      _mm512_store_si512(to, pair<0>(stored));
      _mm512_store_si512(to + 64, pair<16>(stored));
      return 2 * 64;
    } else {
      // With the middle bytes of each column exchanged, k and k + 1 are in the same place of two words.
      const __m512i order = _mm512_set4_epi32(0x0f0d0e0c, 0x0b090a08, 0x07050604, 0x03010200);
      const __m512i words = _mm512_shuffle_epi8(stored, order);
      _mm512_store_si512(to, _mm512_permutexvar_epi16(words, table));
      _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table));
      _mm512_store_si512(to + 128, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table));
      _mm512_store_si512(to + 192, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), table));
      return 4 * 64;
    }
  }

 private:
  // Bytes of 8 bits and the next 8, less 128: eight bits are exact in the upper half of a float.
  template <int first_bit>
  QCORE_NUMERIC __m512i pair(__m512i stored) {
    const __m512i first = _mm512_castps_si512(Avx512::code_at<8>(stored, first_bit, __m512{}));
    const __m512i second = _mm512_castps_si512(Avx512::code_at<8>(stored, first_bit + 8, __m512{}));
    constexpr int kOrOfAnd = 0xf8;  // a | (b & c)
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(first, 16), second,
                                     _mm512_set1_epi32(static_cast<int>(0xffff0000u)), kOrOfAnd);
  }
};

template <int Bits>
QCORE_NUMERIC void decode_bfloat_blocks(const BlockTileArguments& t, char* to) {
  const AmxRuns<AmxBfloats> runs(t);
  const BfloatDecoder decoder(t.nibbles);
  for (int panel = 0; panel < t.panels; ++panel) {
    const std::uint8_t* w = t.codes + panel * t.panel_bytes;
    for (std::int64_t tap = 0; tap < t.layout->taps; ++tap)
      for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
        const std::int64_t steps = p + 1 < t.blocks ? t.block_steps : t.last_block_steps;
        char* const end = to + runs.of_block(t, p) * runs.weight_bytes();
        for (std::int64_t step = 0; step < steps; ++step, w += PackedLayout::kStepBytes)
          to += decoder.write_step<Bits>(_mm512_loadu_si512(w), to);
        for (; to < end; to += 64) _mm512_store_si512(to, _mm512_setzero_si512());
      }
  }
}

[[maybe_unused]] static void decode_bfloats(const BlockTileArguments& t, void* out) {
  if (t.layout->bits == 8)
    decode_bfloat_blocks<8>(t, static_cast<char*>(out));
  else
    decode_bfloat_blocks<4>(t, static_cast<char*>(out));
}

// Places bf16 values as they are, and the sum of each block. Whole vectors are stored: the next block overwrites what
// is behind a block's end; after the last one there is PackedRows::kSlackBytes of room.
[[maybe_unused]] static void pack_bfloats(const float* values, std::int64_t stride, std::int64_t count,
                                          const PackedLayout& layout, int, const PackedRows& rows) {
  constexpr std::int64_t kLanes = Avx512::kLanes;
  const std::int64_t blocks = layout.blocks(), block_k = layout.block_first_step(1) * layout.step_k();
  for (std::int64_t row = 0; row < count; ++row) {
    char* const data = rows.data + row * rows.row_bytes;
    auto* const out = reinterpret_cast<std::uint16_t*>(data + rows.codes);
    auto* const sums = reinterpret_cast<float*>(data) + PackedRows::kScaledSum * blocks;
    for (std::int64_t p = 0; p < blocks; ++p) {
      const std::int64_t length = layout.block_length(p), padded = layout.block_steps(p) * layout.step_k();
      const float* const x = values + row * stride + layout.block_begin(p);
      std::uint16_t* const to = out + p * block_k;
      __m512 sum = _mm512_setzero_ps();
      for (std::int64_t i = 0; i < padded; i += kLanes) {
        const std::int64_t left = length - i < 0 ? 0 : length - i;
        const __m512 some = left >= kLanes ? Avx512::load(x + i) : Avx512::load_first(x + i, static_cast<int>(left));
        sum = Avx512::add(sum, some);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(some), 16)));
      }
      sums[p] = _mm512_reduce_add_ps(sum);
    }
  }
}

}  // namespace
}  // namespace qcore
