#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "linear/problem.h"

namespace qcore {

// Rows of activations as fp32, block after block; a block is followed by zeros up to `padded_block`.
struct GatheredRows {
  float* values;  // [M, P * padded_block]
  std::int64_t rows, blocks, padded_block;
  int bits;  // of the weight: with 4, a value is multiplied by what nibble_weight() makes of its code too large by
};

// A nibble that is masked but not shifted is its code times this power of two; `k` within a step of 8.
__host__ __device__ constexpr float nibble_weight(int k) { return (k % 2 ? 256.0f : 1.0f) * (k / 4 ? 16.0f : 1.0f); }

// Rows first_row .. first_row + out.rows - 1 of x [M, K].
void gather_rows(const RowView& x, std::int64_t first_row, std::int64_t k, std::int64_t block_size,
                 const GatheredRows& out, cudaStream_t stream);

}  // namespace qcore
