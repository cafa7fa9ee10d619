#pragma once

#include "awq/cpu/awq_columns.h"
#include "simd/vector_avx512.h"

namespace qcore {
namespace {

// 16 rows of 16 numbers of 32 bits as columns, `stride` bytes apart.
QCORE_NUMERIC void awq_transpose16(__m512i (&a)[16], std::uint8_t* to, std::int64_t stride) {
  __m512i b[16];
  repeat<8>([&](int i) QCORE_UNROLLED {
    b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
  });
  // Then each quarter has four rows' numbers of a column, the first quarter's that of the index, the next the fourth
  // column from there.
  unroll<4>([&](auto i) QCORE_UNROLLED {
    constexpr int at = 4 * i.value;
    a[at] = _mm512_unpacklo_epi64(b[at], b[at + 2]);
    a[at + 1] = _mm512_unpackhi_epi64(b[at], b[at + 2]);
    a[at + 2] = _mm512_unpacklo_epi64(b[at + 1], b[at + 3]);
    a[at + 3] = _mm512_unpackhi_epi64(b[at + 1], b[at + 3]);
  });
  unroll<4>([&](auto i) QCORE_UNROLLED {
    constexpr int column = i.value, kEven = 0x88, kOdd = 0xdd;  // quarters
    const __m512i even = _mm512_shuffle_i32x4(a[column], a[column + 4], kEven);
    const __m512i odd = _mm512_shuffle_i32x4(a[column], a[column + 4], kOdd);
    const __m512i later_even = _mm512_shuffle_i32x4(a[column + 8], a[column + 12], kEven);
    const __m512i later_odd = _mm512_shuffle_i32x4(a[column + 8], a[column + 12], kOdd);
    _mm512_store_si512(to + column * stride, _mm512_shuffle_i32x4(even, later_even, kEven));
    _mm512_store_si512(to + (column + 4) * stride, _mm512_shuffle_i32x4(odd, later_odd, kEven));
    _mm512_store_si512(to + (column + 8) * stride, _mm512_shuffle_i32x4(even, later_even, kOdd));
    _mm512_store_si512(to + (column + 12) * stride, _mm512_shuffle_i32x4(odd, later_odd, kOdd));
  });
}

// A permutation of 16-bit numbers looks at the lowest five bits of its indices; the fifth does not matter where both
// halves of the register are alike.
struct AwqColumns512 {
  static constexpr int kPieceBits = 16;
  using Table = __m512i;
  using Weights = __m512i;

  QCORE_NUMERIC Table table(float zero, float scale) {
    const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 products =
        _mm512_mul_ps(_mm512_sub_ps(codes, _mm512_set1_ps(zero - numerics::kAwqBias)), _mm512_set1_ps(scale));
    return _mm512_broadcast_i64x4(_mm512_cvtps_ph(products, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  template <int shift>
  QCORE_NUMERIC Weights look_up(Table table, const std::uint8_t* piece) {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(_mm512_load_si512(piece), shift), table);
  }

  QCORE_NUMERIC void take_codes(const AwqRows& rows, std::int64_t first, std::uint8_t* codes) {
    constexpr int kPairs = kAwqStepRows / 2;
    constexpr __mmask32 kHigh = 0xaaaaaaaa;
    const auto taken = static_cast<__mmask16>((1u << rows.columns / numerics::kAwqColumns) - 1);
    const auto words = [&](std::int64_t row) QCORE_UNROLLED {
      row = row < rows.rows ? row : rows.rows - 1;
      return _mm512_maskz_loadu_epi32(taken, rows.words + row * rows.row_words);
    };
    __m512i low[kPairs], high[kPairs];
    repeat<kPairs>([&](int i) QCORE_UNROLLED {
      const __m512i even = words(first + 2 * i), odd = words(first + 2 * i + 1);
      low[i] = _mm512_mask_blend_epi16(kHigh, even, _mm512_slli_epi32(odd, 16));
      high[i] = _mm512_mask_blend_epi16(kHigh, _mm512_srli_epi32(even, 16), odd);
    });
    awq_transpose16(low, codes, kAwqWordBytes);
    awq_transpose16(high, codes + kAwqWordBytes / 2, kAwqWordBytes);
  }

  QCORE_NUMERIC void stream(std::uint16_t* to, Weights a) { _mm512_stream_si512(reinterpret_cast<__m512i*>(to), a); }
  QCORE_NUMERIC void fence() { _mm_sfence(); }
  QCORE_NUMERIC void store(std::uint16_t* to, Weights a) { Avx512::store(to, a); }
  QCORE_NUMERIC void store_first(std::uint16_t* to, Weights a, int count) {
    _mm512_mask_storeu_epi16(to, (1u << count) - 1, a);
  }
};

}  // namespace
}  // namespace qcore
