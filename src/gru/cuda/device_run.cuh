#pragma once

#include <cuda_runtime.h>

#include "gru/cuda/gru_device.h"
#include "gru/problem.h"
#include "recurrent/code_access.h"
#include "runtime/cuda/cuda_warp.cuh"

// Declares the arguments that the kernels of one run share.
namespace qcore {

// An array of the caller's; strides in elements, of [rows, channels] or of [steps, rows, channels].
struct DeviceView {
  void* data;
  DType dtype;
  std::int64_t strides[3];
};

inline DeviceView device_view(const TensorView& view) {
  DeviceView made{view.data, view.dtype, {}};
  for (int axis = 0; axis < view.rank; ++axis) made.strides[axis] = view.strides[axis];
  return made;
}

// Says which arithmetic a cell needs: `any` covers every format; the others round half away from zero in 32 bits, with
// products of 64, where gru_pack.cpp proves that this holds.
enum class GruCellKind : std::uint8_t { any, staged, fused };

// Some of the steps of a run, between whose launches the states are kept as planes of bytes [plane, row, state_bytes].
struct GruSteps {
  GruDeviceArrays arrays;
  numerics::GruCell cell;
  CodeFormat h;
  std::int32_t rb_zero;  // of the fourth gate
  DeviceView y, last, gates;
  const std::int32_t* lengths;
  std::int64_t length_stride;
  bool reverse, fused, half_even;
  GruCellKind kind;
  bool overlap;                 // kernels may start before the one in front of them has ended
  std::int64_t steps;           // of the whole run
  std::int64_t first, count;    // those of this part
  std::int64_t batch, rows;     // rows: with padding
  std::int64_t size, channels;  // H, with padding
  std::int64_t state_bytes;     // of a row of a plane
  const std::uint16_t* wx;      // [count, batch, 3, channels], codes less the lowest one
  char *state, *next_state;     // the persistent kernel has one only
};

// Steps of row b. On a device they are not checked.
__device__ __forceinline__ std::int64_t row_length(const std::int32_t* lengths, std::int64_t stride, std::int64_t b,
                                                   std::int64_t steps) {
  if (!lengths) return steps;
  const std::int64_t length = lengths[b * stride];
  return length < 0 ? 0 : length > steps ? steps : length;
}

__device__ __forceinline__ std::int64_t time_of(std::int64_t step, std::int64_t length, bool reverse) {
  return reverse && step < length ? length - 1 - step : step;
}

}  // namespace qcore
