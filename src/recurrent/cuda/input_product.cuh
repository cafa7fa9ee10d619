#pragma once

#include "recurrent/cuda/device_lanes.cuh"
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

// A sum, its offset included, as a code less the lowest one. make() has proven that nothing leaves int64.
__device__ __forceinline__ std::uint16_t product_code(std::int64_t total, std::int32_t shift, bool half_even,
                                                      const numerics::CodeRange& range) {
  total = half_even ? DeviceLanes<numerics::ShiftRounding::half_even>::shift(total, shift)
                    : DeviceLanes<numerics::ShiftRounding::half_away>::shift(total, shift);
  return static_cast<std::uint16_t>(numerics::clamp_code(total, range.lo, range.hi) - range.lo);
}

// Multiplies all rows by the product's weights.
void multiply_inputs(const RecurrentSteps& steps, const ProductOutputs& to, const InputRows& inputs,
                     cudaStream_t stream);

}  // namespace qcore
