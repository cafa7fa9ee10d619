#pragma once

#include "recurrent/cuda/device_run.cuh"

namespace qcore {

// Rows of planes of bytes: the inputs of all steps, or the states of one.
struct InputRows {
  const char* data;
  int planes;
  std::int64_t count, rows;  // rows: with padding, a multiple of kInputRows
  std::int64_t row_bytes;
};
constexpr int kInputRows = 128;

// A product's outputs in codes of `range`, and where they go: [count, gates, outputs], less the lowest code.
struct ProductOutputs {
  DeviceProduct product;
  numerics::CodeRange range;
  int gates, weight_planes;
  std::int64_t outputs;  // with padding
  std::uint16_t* codes;
};

// Multiplies all rows by the product's weights.
void multiply_inputs(const RecurrentSteps& steps, const ProductOutputs& to, const InputRows& inputs,
                     cudaStream_t stream);

}  // namespace qcore
