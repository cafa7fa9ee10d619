#pragma once

#include <cuda_runtime.h>

#include "qcore/tensor_view.h"
#include "recurrent/cuda/device_layer.h"
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

// The memory in which the launches of a step leave values for the next one (separate/steps.cuh).
struct SeparateStep {
  int state_planes;
  SecondProduct product;
  std::int64_t outputs, row_bytes;  // of the second product, with padding; of a row of a plane of its inputs
  char* inputs;                     // [plane, row, row_bytes]
  std::uint16_t *rh, *results;      // [batch, state_gates, channels] and [batch, outputs], codes less the lowest one
};

// Some of the steps of a run, between whose launches the states are kept as planes of bytes [plane, row, state_bytes].
// Each cell adds what is its own.
struct RecurrentSteps {
  RecurrentDeviceArrays arrays;
  CodeFormat h;
  DeviceView y, last;
  const std::int32_t* lengths;
  std::int64_t length_stride;
  bool reverse, half_even;
  bool narrow;                  // numbers of the cell, products included, have 32 bits
  bool overlap;                 // kernels may start before the one in front of them has ended
  std::int64_t steps;           // of the whole run
  std::int64_t first, count;    // those of this part
  std::int64_t batch, rows;     // rows: with padding
  std::int64_t size, channels;  // H, with padding
  std::int64_t state_bytes;     // of a row of a plane
  const std::uint16_t* wx;      // [count, batch, gates, channels], codes less the lowest one
  char *state, *next_state;     // the persistent kernel has one only
  std::int32_t* cells;          // [batch, channels], of a cell with a second state, less its zero point
  SeparateStep separate;        // of layers whose steps are separate launches, which have one state only
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
