#pragma once

#include <immintrin.h>

#include "simd/unroll.h"

// Bytes of rows to bytes of columns, in squares of 16.
namespace qcore {
namespace {

// Four times a perfect shuffle of the 256 bytes of a square, in each half of the vectors: the four upper bits of an
// index change places with the lower ones.
QCORE_NUMERIC void transpose_squares(__m256i (&squares)[16]) {
  unroll<4>([&](auto) QCORE_UNROLLED {
    __m256i shuffled[16];
    repeat<8>([&](int i) QCORE_UNROLLED {
      const __m256i a = squares[i], b = squares[i + 8];
      shuffled[2 * i] = _mm256_unpacklo_epi8(a, b);
      shuffled[2 * i + 1] = _mm256_unpackhi_epi8(a, b);
    });
    repeat<16>([&](int i) QCORE_UNROLLED { squares[i] = shuffled[i]; });
  });
}

// Up to four rows to fours of bytes, 16 columns at a time.
QCORE_NUMERIC std::int64_t transpose_quads(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to,
                                           std::int64_t rows, std::int64_t columns) {
  std::int64_t column = 0;
  for (; column + 16 <= columns; column += 16) {
    __m128i row[4];
    for (int r = 0; r < 4; ++r)
      row[r] = r < rows ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + r * from_step + column))
                        : _mm_setzero_si128();
    const __m128i low01 = _mm_unpacklo_epi8(row[0], row[1]), high01 = _mm_unpackhi_epi8(row[0], row[1]);
    const __m128i low23 = _mm_unpacklo_epi8(row[2], row[3]), high23 = _mm_unpackhi_epi8(row[2], row[3]);
    auto* out = reinterpret_cast<__m128i*>(to + 4 * column);
    _mm_storeu_si128(out, _mm_unpacklo_epi16(low01, low23));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(low01, low23));
    _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(high01, high23));
    _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(high01, high23));
  }
  return column;
}

// Where there are 16 rows or columns, those that are left over are taken with some that were done already.
void transpose_bytes(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to, std::int64_t to_step,
                     std::int64_t rows, std::int64_t columns, std::int64_t writable) {
  if (rows < 16 || columns < 16) {
    std::int64_t column = 0;
    if (to_step == 4 && writable == 4) column = transpose_quads(from, from_step, to, rows, columns);
    for (; column < columns; ++column)
      for (std::int64_t row = 0; row < rows; ++row) to[column * to_step + row] = from[row * from_step + column];
    return;
  }
  // Two squares at once, the second one this many columns behind. Columns outside: what is written together lies
  // together.
  const std::int64_t second = columns < 32 ? columns - 16 : 16;
  for (std::int64_t next_column = 0; next_column < columns; next_column += 32) {
    const std::int64_t column = next_column + 32 <= columns ? next_column : columns < 32 ? 0 : columns - 32;
    for (std::int64_t next_row = 0; next_row < rows; next_row += 16) {
      const std::int64_t row = next_row + 16 <= rows ? next_row : rows - 16;
      __m256i squares[16];
      const std::uint8_t* in = from + row * from_step + column;
      repeat<16>([&](int i) QCORE_UNROLLED {
        const auto* at = in + i * from_step;
        squares[i] =
            _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(at + second), reinterpret_cast<const __m128i*>(at));
      });
      transpose_squares(squares);
      std::uint8_t* out = to + column * to_step + row;
      repeat<16>([&](int i) QCORE_UNROLLED {
        auto* at = out + i * to_step;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(squares[i]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at + second * to_step), _mm256_extracti128_si256(squares[i], 1));
      });
    }
  }
}

}  // namespace
}  // namespace qcore
