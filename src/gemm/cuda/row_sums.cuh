#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "qcore/tensor_view.h"

namespace qcore {

// Sums of `unit` neighbors along k of rows of 16-bit values, in fp32: sums[k / unit, row], the units `stride` apart.
// `unit` is 32 or 64; rows start at multiples of 16 bytes. What is missing to whole 128 k counts as zeros.
struct RowSums {
  const std::uint16_t* values;  // [M, K]
  std::int64_t row_stride, rows, k;
  DType dtype;  // f16 or bf16
  int unit;
  std::int64_t stride;
  float* sums;
};

void add_row_sums(const RowSums& arguments, cudaStream_t stream);

}  // namespace qcore
