#pragma once

#include "gemm/cuda/device_operands.cuh"

namespace qcore {

// One block's integer products entering the fp32 totals.
struct Accumulation {
  std::int64_t rows;             // M
  std::int64_t first_row;        // of these rows in out.y
  std::int64_t row_length;       // of products and totals: N rounded up to a multiple of 4
  const std::int32_t* products;  // [M, row_length]; null: there is no block (K = 0)
  float* totals;                 // [M, row_length]
  std::int64_t p;
  const float* scales;       // [M] of block p
  const float* scaled_sums;  // [M], null for symmetric weights
  const float* offsets;      // [M], null unless the activations have offsets
  bool first;                // totals hold nothing yet
  bool last;                 // write out.y, not totals
};

void dequantize_accumulate(const DeviceWeight& w, const Accumulation& block, const DeviceOutput& out,
                           cudaStream_t stream);

}  // namespace qcore
