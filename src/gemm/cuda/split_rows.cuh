#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "formats/row_view.h"

namespace qcore {

// Rows of activations side by side in 16 bits, followed by zeros up to `row_length`, a multiple of 8: fp16 and bf16 as
// they are, fp32 as three planes of bf16, the sum of which it is (but for bits below 2^-133). An infinity is
// one in the first plane and zeros in the others.
struct SplitRows {
  std::uint16_t* values;  // [planes, M, row_length]
  std::int64_t rows, row_length;
};

constexpr int split_planes(DType dtype) { return dtype == DType::f32 ? 3 : 1; }

// Rows first_row .. first_row + out.rows - 1 of x [M, K].
void split_rows(const RowView& x, std::int64_t first_row, std::int64_t k, const SplitRows& out, cudaStream_t stream);

}  // namespace qcore
