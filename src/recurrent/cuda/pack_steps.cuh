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

// Four codes of a row in each plane; `low` is the only one of codes of up to 8 bits.
struct PackedWord {
  std::uint32_t high, low;
};

__device__ __forceinline__ PackedWord pack_word(const PackRows& p, std::int64_t b, std::int64_t step,
                                                std::int64_t word) {
  const std::int64_t length = row_length(p.lengths, p.length_stride, b, p.steps);
  const std::int64_t at = time_of(step, length, p.reverse) * p.from.strides[0] + b * p.from.strides[1];
  PackedWord packed{0, 0};
#pragma unroll
  for (int byte = 0; byte < 4; ++byte) {
    const std::int64_t k = 4 * word + byte;
    if (k >= p.features || step >= length) continue;
    const std::int32_t centered =
        p.from.data ? load_centered(p.from.data, p.from.dtype, at + k * p.from.strides[2], p.format) : 0;
    const auto bits = static_cast<std::uint32_t>(centered + p.format.zero);
    packed.low |= (bits & 0xffu) << (8 * byte);
    packed.high |= (bits >> 8 & 0xffu) << (8 * byte);
  }
  return packed;
}

void pack_steps(const PackPair& pair, cudaStream_t stream);

}  // namespace qcore
