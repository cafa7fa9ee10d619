#pragma once

#include <cstdint>

// Declares what an instruction set provides. Included by files for one instruction set.
namespace qcore {

// Rows of one group: `columns` is a multiple of 8, the rows' words follow each other.
struct AwqRows {
  const std::uint32_t* words;
  std::int64_t row_words;  // from row to row of `words`
  std::int64_t rows, columns;
  const float *zeros, *scales;  // [columns], of the group; kAwqBias + z
};

// Largest number of rows in one call of store_columns.
constexpr int kAwqTileRows = 128;

constexpr int kAwqWordBytes = 16;  // of the fp16 weights of one word

constexpr int kAwqXRows = 4;

struct AwqKernels {
  // To fp32: a group's zeros, kAwqBias + z, and scales.
  void (*load_group)(const std::uint32_t* qzeros, const std::uint16_t* scales, std::int64_t columns, float* zeros,
                     float* wide_scales);
  // out[row * out_row + column]; past the caches if `stream`, which needs `out` aligned to kAwqWordBytes and rows that
  // are whole lines apart.
  void (*store_rows)(const AwqRows& rows, std::uint16_t* out, std::int64_t out_row, bool stream);
  // out[column * out_column + row], of kAwqTileRows rows at most. `stream` needs each column aligned to 64 bytes.
  void (*store_columns)(const AwqRows& rows, std::uint16_t* out, std::int64_t out_column, bool stream);
  // sums[m * columns + column] += x[m * x_row + row] * (u - 8), m < x_rows <= kAwqXRows.
  void (*add_products)(const AwqRows& rows, const float* x, std::int64_t x_row, int x_rows, float* sums);
  // The steps of a panel of PackedLayout, 8 rows each: `rows` is a multiple of 8, `words` holds 16 columns, or 8.
  void (*pack_panel)(const AwqRows& rows, std::uint8_t* steps);
};

extern const AwqKernels kAwqAvx2;
extern const AwqKernels kAwqAvx512;
extern const AwqKernels kAwqNeon;

}  // namespace qcore
