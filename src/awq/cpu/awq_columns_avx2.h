#pragma once

#include <cstring>

#include "awq/cpu/awq_columns.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

// 8 rows of 8 words as columns.
QCORE_NUMERIC void awq_transpose8(__m256i (&a)[8]) {
  __m256i b[8];
  repeat<4>([&](int i) QCORE_UNROLLED {
    b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
  });
  __m256i c[8];
  unroll<2>([&](auto i) QCORE_UNROLLED {
    constexpr int at = 4 * i.value;
    c[at] = _mm256_unpacklo_epi64(b[at], b[at + 2]);
    c[at + 1] = _mm256_unpackhi_epi64(b[at], b[at + 2]);
    c[at + 2] = _mm256_unpacklo_epi64(b[at + 1], b[at + 3]);
    c[at + 3] = _mm256_unpackhi_epi64(b[at + 1], b[at + 3]);
  });
  repeat<4>([&](int i) QCORE_UNROLLED {
    a[i] = _mm256_permute2x128_si256(c[i], c[i + 4], 0x20);
    a[i + 4] = _mm256_permute2x128_si256(c[i], c[i + 4], 0x31);
  });
}

// Bytes are looked up, those of 16 numbers at a time: the weights' low ones and their high ones. Rows of codes are in
// the order 0-7, 16-23, 8-15, 24-31, in which unpacking low and high bytes gives 16 rows and 16 more.
struct AwqColumns256 {
  static constexpr int kPieceBits = 8;
  struct Table {
    __m256i low, high;  // the same in both halves
  };
  struct Weights {
    __m256i first, last;
  };

  QCORE_NUMERIC Table table(float zero, float scale) {
    const auto products = [&](__m256 codes) QCORE_UNROLLED {
      const __m256 exact =
          _mm256_mul_ps(_mm256_sub_ps(codes, _mm256_set1_ps(zero - numerics::kAwqBias)), _mm256_set1_ps(scale));
      return _mm256_cvtps_ph(exact, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    };
    const __m128i low_first = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m128i a = _mm_shuffle_epi8(products(_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7)), low_first);
    const __m128i b = _mm_shuffle_epi8(products(_mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)), low_first);
    return {_mm256_broadcastsi128_si256(_mm_unpacklo_epi64(a, b)),
            _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(a, b))};
  }

  template <int shift>
  QCORE_NUMERIC Weights look_up(const Table& table, const std::uint8_t* piece) {
    const __m256i codes = Avx2::bit_and(Avx2::shift_right_16(Avx2::load(piece), shift), _mm256_set1_epi8(15));
    const __m256i low = _mm256_shuffle_epi8(table.low, codes), high = _mm256_shuffle_epi8(table.high, codes);
    return {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
  }

  QCORE_NUMERIC void take_codes(const AwqRows& rows, std::int64_t first, std::uint8_t* codes) {
    const std::int64_t words = rows.columns / numerics::kAwqColumns;
    for (std::int64_t word = 0; word < words; word += kWords)
      take_words(rows, first, word, Avx2::first_lanes(static_cast<int>(words - word)), codes + word * kAwqWordBytes);
  }

  QCORE_NUMERIC void stream(std::uint16_t* to, const Weights& a) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a.first);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + 1, a.last);
  }
  QCORE_NUMERIC void fence() { _mm_sfence(); }
  QCORE_NUMERIC void store(std::uint16_t* to, const Weights& a) {
    Avx2::store(to, a.first);
    Avx2::store(to + kAwqStepRows / 2, a.last);
  }
  QCORE_NUMERIC void store_first(std::uint16_t* to, const Weights& a, int count) {
    std::uint16_t all[kAwqStepRows];
    store(all, a);
    std::memcpy(to, all, static_cast<std::size_t>(count) * sizeof *to);
  }

 private:
  static constexpr int kWords = 8, kBlocks = 4;

  QCORE_NUMERIC void take_words(const AwqRows& rows, std::int64_t first, std::int64_t word, __m256i taken,
                                std::uint8_t* codes) {
    // Gathers the first bytes of four rows' words, then the second bytes, and so on.
    const __m256i by_byte =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m256i blocks[kBlocks][kWords];
    unroll<kBlocks>([&](auto block) QCORE_UNROLLED {
      constexpr int start = block.value / 2 * 16 + block.value % 2 * 4;  // four rows, and the four after the next four
      repeat<8>([&](int i) QCORE_UNROLLED {
        std::int64_t row = first + start + i / 4 * 8 + i % 4;
        row = row < rows.rows ? row : rows.rows - 1;
        blocks[block.value][i] =
            _mm256_maskload_epi32(reinterpret_cast<const int*>(rows.words + row * rows.row_words + word), taken);
      });
      awq_transpose8(blocks[block.value]);
    });
    for (int i = 0; i < kWords; ++i, codes += kAwqWordBytes) {
      __m256i bytes[kBlocks];
      repeat<kBlocks>([&](int block) QCORE_UNROLLED { bytes[block] = _mm256_shuffle_epi8(blocks[block][i], by_byte); });
      const __m256i low[2] = {_mm256_unpacklo_epi32(bytes[0], bytes[1]), _mm256_unpacklo_epi32(bytes[2], bytes[3])};
      const __m256i high[2] = {_mm256_unpackhi_epi32(bytes[0], bytes[1]), _mm256_unpackhi_epi32(bytes[2], bytes[3])};
      Avx2::store(codes, _mm256_unpacklo_epi64(low[0], low[1]));
      Avx2::store(codes + kAwqStepRows, _mm256_unpackhi_epi64(low[0], low[1]));
      Avx2::store(codes + 2 * kAwqStepRows, _mm256_unpacklo_epi64(high[0], high[1]));
      Avx2::store(codes + 3 * kAwqStepRows, _mm256_unpackhi_epi64(high[0], high[1]));
    }
  }
};

}  // namespace
}  // namespace qcore
