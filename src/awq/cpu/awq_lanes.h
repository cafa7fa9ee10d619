#pragma once

#include <cstring>

#include "awq/cpu/awq_prefetch.h"
#include "awq/cpu/vtable.h"
#include "numerics/awq.h"
#include "simd/unroll.h"

// The kernels on vectors V of one instruction set: simd's, and
//   Int spread(words)    kLanes columns of kLanes / 8 words, each with its nibble lowest in its lane
//   Float nibbles(Int)   the lowest four bits of each lane, kAwqBias + u
//   Float code(Int)      u - 8
//   void store_pair<stream>(to, Float, Float)   as fp16: 4 * kLanes bytes, aligned to as many if `stream`
//   void fence()         after the last of what streams
//   Word                 the vectors of one word, for what is left of a row that is no multiple of longer ones
namespace qcore {
namespace {

template <class V>
QCORE_INLINE typename V::Float awq_products(const AwqRows& rows, const std::uint32_t* words, std::int64_t column) {
  const typename V::Float u = V::nibbles(V::spread(words + column / numerics::kAwqColumns));
  return V::mul(V::sub(u, V::load(rows.zeros + column)), V::load(rows.scales + column));
}

constexpr int kAwqRowsAhead = 4;  // whose words are fetched early: hardware does not look beyond a part of a row

// Columns in front of the first whole line of a row.
QCORE_NUMERIC std::int64_t awq_head(const std::uint16_t* out, std::int64_t columns) {
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) % 64 / sizeof *out);
  const std::int64_t head = past ? 32 - past : 0;
  return head < columns ? head : columns;
}

template <class V, bool stream>
QCORE_INLINE void awq_store_rows(const AwqRows& rows, std::uint16_t* out, std::int64_t out_row) {
  using Word = typename V::Word;
  const std::int64_t head = stream ? awq_head(out, rows.columns) : 0;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::uint32_t* words = rows.words + row * rows.row_words;
    std::uint16_t* to = out + row * out_row;
    std::int64_t column = 0;
    for (; column < head; column += Word::kLanes)
      Word::store_half(to + column, awq_products<Word>(rows, words, column));
    for (; column + 2 * V::kLanes <= rows.columns; column += 2 * V::kLanes) {
      if (stream && (column - head) % kAwqLineColumns == 0)
        awq_prefetch(words, kAwqRowsAhead * rows.row_words + column / numerics::kAwqColumns);
      V::template store_pair<stream>(to + column, awq_products<V>(rows, words, column),
                                     awq_products<V>(rows, words, column + V::kLanes));
    }
    for (; column < rows.columns; column += Word::kLanes)
      Word::store_half(to + column, awq_products<Word>(rows, words, column));
  }
}

template <class V>
void awq_store_rows_either(const AwqRows& rows, std::uint16_t* out, std::int64_t out_row, bool stream) {
  if (!stream) return awq_store_rows<V, false>(rows, out, out_row);
  awq_store_rows<V, true>(rows, out, out_row);
  V::fence();
}

template <class Vector>
void awq_load_group(const std::uint32_t* qzeros, const std::uint16_t* scales, std::int64_t columns, float* zeros,
                    float* wide_scales) {
  using V = typename Vector::Word;
  for (std::int64_t column = 0; column < columns; column += V::kLanes) {
    V::store(zeros + column, V::nibbles(V::spread(qzeros + column / numerics::kAwqColumns)));
    V::store(wide_scales + column, V::load_half(scales + column));
  }
}

// Rows taken together for one pass over the sums.
constexpr int kAwqRowsTogether = 4;

template <class V, int kRows, int kXRows>
QCORE_INLINE void awq_add_vector(const AwqRows& rows, std::int64_t first, std::int64_t column, const float* x,
                                 std::int64_t x_row, float* sums) {
  typename V::Float total[kXRows];
  repeat<kXRows>([&](int m) QCORE_UNROLLED { total[m] = V::load(sums + m * rows.columns + column); });
  repeat<kRows>([&](int r) QCORE_UNROLLED {
    const std::int64_t row = first + r;
    const auto code = V::code(V::spread(rows.words + row * rows.row_words + column / numerics::kAwqColumns));
    repeat<kXRows>([&](int m) QCORE_UNROLLED { total[m] = V::fma(V::set1(x[m * x_row + row]), code, total[m]); });
  });
  repeat<kXRows>([&](int m) QCORE_UNROLLED { V::store(sums + m * rows.columns + column, total[m]); });
}

template <class V, int kRows, int kXRows>
QCORE_INLINE void awq_add_rows(const AwqRows& rows, std::int64_t first, const float* x, std::int64_t x_row,
                               float* sums) {
  std::int64_t column = 0;
  for (; column + V::kLanes <= rows.columns; column += V::kLanes)
    awq_add_vector<V, kRows, kXRows>(rows, first, column, x, x_row, sums);
  using Word = typename V::Word;
  for (; column < rows.columns; column += Word::kLanes)
    awq_add_vector<Word, kRows, kXRows>(rows, first, column, x, x_row, sums);
}

template <class V, int kXRows>
QCORE_INLINE void awq_add_all(const AwqRows& rows, const float* x, std::int64_t x_row, float* sums) {
  std::int64_t row = 0;
  for (; row + kAwqRowsTogether <= rows.rows; row += kAwqRowsTogether)
    awq_add_rows<V, kAwqRowsTogether, kXRows>(rows, row, x, x_row, sums);
  for (; row < rows.rows; ++row) awq_add_rows<V, 1, kXRows>(rows, row, x, x_row, sums);
}

template <class V>
void awq_add_products(const AwqRows& rows, const float* x, std::int64_t x_row, int x_rows, float* sums) {
  switch (x_rows) {
    case 1:
      return awq_add_all<V, 1>(rows, x, x_row, sums);
    case 2:
      return awq_add_all<V, 2>(rows, x, x_row, sums);
    case 3:
      return awq_add_all<V, 3>(rows, x, x_row, sums);
    default:
      return awq_add_all<V, 4>(rows, x, x_row, sums);
  }
}

// Byte k % 4 of a column's lane holds row k of a step low and row k + 4 high: see PackedLayout.
template <class Vector>
void awq_pack_panel(const AwqRows& rows, std::uint8_t* steps) {
  using V = typename Vector::Word;
  constexpr int kStepBytes = 64, kStepRows = 8;
  for (std::int64_t first = 0; first < rows.rows; first += kStepRows, steps += kStepBytes)
    for (std::int64_t column = 0; column < rows.columns; column += V::kLanes) {
      typename V::Int lanes = V::set1(0);
      repeat<kStepRows>([&](int k) QCORE_UNROLLED {
        const int shift = 8 * (k % 4) + k / 4 * 4;
        const std::uint32_t* words = rows.words + (first + k) * rows.row_words + column / V::kLanes;
        const typename V::Int nibble = V::bit_and(V::spread(words), V::set1(15));
        lanes = V::bit_or(lanes, V::shift_left_32(nibble, shift));
      });
      V::store(steps + 4 * column, lanes);
    }
}

}  // namespace
}  // namespace qcore
