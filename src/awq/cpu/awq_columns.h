#pragma once

#include "awq/cpu/awq_prefetch.h"
#include "awq/cpu/vtable.h"
#include "numerics/awq.h"
#include "simd/unroll.h"

// Columns of weights, one after another. A column of a group has 16 weights, which are made once and looked up by the
// codes of 32 rows at a time. So it is codes that are transposed and not weights, which are four times as many bytes.
// T is what an instruction set provides:
//   kPieceBits, Table, Weights    bits of a word's piece; the 16 weights of a column; those of 32 rows
//   void take_codes(rows, first, codes)      codes[word][piece][row] of 32 rows, an order of T's; rows beyond the last
//                                            are that one again
//   Table table(zero, scale)
//   Weights look_up<shift>(Table, piece)     by the nibbles that begin at bit `shift` of the piece
//   void stream(to, Weights), store(to, Weights), store_first(to, Weights, count)
//   void fence()                              after the last of what streams
namespace qcore {
namespace {

constexpr int kAwqStepRows = 32, kAwqTileColumns = kAwqLineColumns;
constexpr int kAwqTileWords = kAwqTileColumns / numerics::kAwqColumns;
constexpr int kAwqWordBytes = 4 * kAwqStepRows, kAwqStepBytes = kAwqTileWords * kAwqWordBytes;  // of codes

// A column of a tile for each of its rows: while one is written, the words of a row of the next tile down are fetched.
template <class T, bool stream>
QCORE_INLINE void awq_look_up_columns(const AwqRows& rows, const std::uint8_t* codes, std::uint16_t* out,
                                      std::int64_t out_column) {
  for (std::int64_t word = 0; word * numerics::kAwqColumns < rows.columns; ++word)
    unroll<numerics::kAwqColumns>([&](auto i) QCORE_UNROLLED {
      constexpr int shift = numerics::awq_shift(i.value), piece = shift / T::kPieceBits * T::kPieceBits;
      const std::int64_t column = word * numerics::kAwqColumns + i.value;
      if constexpr (stream) awq_prefetch(rows.words, (rows.rows + column) * rows.row_words);
      const auto table = T::table(rows.zeros[column], rows.scales[column]);
      const std::uint8_t* from = codes + word * kAwqWordBytes + piece * kAwqStepRows / 8;
      std::uint16_t *to = out + column * out_column, *const end = to + rows.rows;
      for (; to + kAwqStepRows <= end; to += kAwqStepRows, from += kAwqStepBytes) {
        const auto weights = T::template look_up<shift - piece>(table, from);
        if constexpr (stream)
          T::stream(to, weights);
        else
          T::store(to, weights);
      }
      if (to < end) T::store_first(to, T::template look_up<shift - piece>(table, from), static_cast<int>(end - to));
    });
}

template <class T>
void awq_store_columns(const AwqRows& rows, std::uint16_t* out, std::int64_t out_column, bool stream) {
  alignas(64) std::uint8_t codes[kAwqTileRows / kAwqStepRows * kAwqStepBytes];
  for (std::int64_t column = 0; column < rows.columns; column += kAwqTileColumns, out += kAwqTileColumns * out_column) {
    const std::int64_t left = rows.columns - column;
    const AwqRows tile{rows.words + column / numerics::kAwqColumns,     rows.row_words,      rows.rows,
                       left < kAwqTileColumns ? left : kAwqTileColumns, rows.zeros + column, rows.scales + column};
    for (std::int64_t row = 0; row < rows.rows; row += kAwqStepRows)
      T::take_codes(tile, row, codes + row / kAwqStepRows * kAwqStepBytes);
    if (stream)
      awq_look_up_columns<T, true>(tile, codes, out, out_column);
    else
      awq_look_up_columns<T, false>(tile, codes, out, out_column);
  }
  if (stream) T::fence();
}

}  // namespace
}  // namespace qcore
