#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "formats/activation_scales.h"
#include "formats/row_view.h"
#include "gemm/cuda/tiled_rows.cuh"
#include "qcore/linear.h"

namespace qcore {

// Parameters of a row's block, in one 16-byte load.
struct alignas(16) ActivationTerms {
  float scale;
  std::int32_t shift;  // -zero_code * sum of the codes: what the products with stored weight codes are too large by
  float scaled_sum;    // scale * sum of the codes
  float offset;
};

// Codes and parameters as qcore::QuantizedActivations has them, [M, K] and [M, S]; in the place of all other arrays.
struct PlainRows {
  RowView codes, scales, offsets;  // no data of offsets if there are none
};

// Rows of activations as codes, block after block; the last codes of a block are zeros up to `padded_block`.
template <class Code>
struct QuantizedRows {
  Code* codes;         // [M, P * padded_block]
  float* scales;       // [P, M]
  float* scaled_sums;  // [P, M], scale * sum of the block's codes; may be null
  float* offsets;      // [P, M]; null unless the activations have offsets
  std::int64_t rows;   // M
  std::int64_t blocks;
  std::int64_t padded_block;
  ActivationTerms* terms = nullptr;  // [P, M], in the place of the three arrays of floats, which are then null
  int zero_code = 0;                 // of the weight, for terms
  // The kernel may overlap with those in front of it in the stream, which write neither x nor scales nor touch any of
  // this memory: it waits for them before it stores, so that who waits for it waits for them as well.
  bool overlap = false;
  // The kernel may start while those in front of it run, and waits for them before anything else. Needs 9.0.
  bool starts_early = false;
  // Short blocks are quantized by thread blocks of half as many threads: faster in front of a product of which a
  // multiprocessor holds one thread block, beside which they find room.
  bool small_thread_blocks = false;
  TiledRows
      tiled{};  // with a shift, in the place of every other order; there are no terms then, and no arrays of floats
  PlainRows plain{};  // with data
};

// Quantizes rows first_row .. first_row + out.rows - 1 of x [M, K] in blocks of block_size, with scales as `scales`
// says; codes that x holds are brought into order. `Code` is std::int8_t, or std::int16_t, which takes the 8-bit modes
// too.
template <class Code>
void quantize_activations(const RowView& x, const ActivationScales& scales, std::int64_t first_row, std::int64_t k,
                          std::int64_t block_size, ComputeMode compute, const QuantizedRows<Code>& out,
                          cudaStream_t stream);

}  // namespace qcore
