#pragma once

#include "recurrent/cuda/device_run.cuh"

namespace qcore {

// Rows of codes, or of floats that become codes, as planes of bytes: row i * batch + b of the planes is step first + i
// of row b.
struct PackRows {
  DeviceView from;  // [T, B, features]; null: zero points
  CodeFormat format;
  int planes;
  std::int64_t rows, features;
  std::int64_t row_bytes, plane_bytes;
  char* to;
  const std::int32_t* lengths;  // null for all steps
  std::int64_t length_stride;
  bool reverse;
  std::int64_t steps, first, batch;
};

struct PackPair {
  PackRows rows[2];  // of x, and of the state before the first step
};

void pack_steps(const PackPair& pair, cudaStream_t stream);

}  // namespace qcore
