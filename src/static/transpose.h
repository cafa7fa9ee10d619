#pragma once

#include <immintrin.h>

#include "simd/unroll.h"

// Bytes of rows to bytes of columns, in squares of 16.
namespace qcore {
namespace {

template <int Level>
QCORE_NUMERIC void exchange(const __m128i (&in)[16], __m128i (&out)[16]) {
  unroll<8>([&](auto i) QCORE_UNROLLED {
    const __m128i a = in[i.value], b = in[i.value + 8];
    out[2 * i.value] = _mm_unpacklo_epi8(a, b);
    out[2 * i.value + 1] = _mm_unpackhi_epi8(a, b);
  });
}

// Four times a perfect shuffle of 256 bytes: the four upper bits of an index change places with the lower ones.
QCORE_NUMERIC void transpose_square(__m128i (&square)[16]) {
  __m128i other[16];
  exchange<0>(square, other);
  exchange<1>(other, square);
  exchange<2>(square, other);
  exchange<3>(other, square);
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
  // Columns outside: what is written together lies together.
  for (std::int64_t next_column = 0; next_column < columns; next_column += 16) {
    const std::int64_t column = next_column + 16 <= columns ? next_column : columns - 16;
    for (std::int64_t next_row = 0; next_row < rows; next_row += 16) {
      const std::int64_t row = next_row + 16 <= rows ? next_row : rows - 16;
      __m128i square[16];
      const std::uint8_t* in = from + row * from_step + column;
      unroll<16>([&](auto i) QCORE_UNROLLED {
        square[i.value] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i.value * from_step));
      });
      transpose_square(square);
      std::uint8_t* out = to + column * to_step + row;
      unroll<16>([&](auto i) QCORE_UNROLLED {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i.value * to_step), square[i.value]);
      });
    }
  }
}

}  // namespace
}  // namespace qcore
