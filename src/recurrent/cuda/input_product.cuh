#pragma once

#include "recurrent/cuda/device_run.cuh"

namespace qcore {

// The inputs of all steps, rows of planes of bytes.
struct InputRows {
  const char* data;
  int planes;
  std::int64_t count, rows;  // rows: with padding, a multiple of kInputRows
  std::int64_t row_bytes;
};
constexpr int kInputRows = 128;

// wx = W x for all rows.
void multiply_inputs(const RecurrentSteps& steps, const DeviceLayer& layer, const InputRows& inputs, std::uint16_t* wx,
                     cudaStream_t stream);

}  // namespace qcore
