#pragma once

#include <functional>

#include "recurrent/cuda/device_cell.cuh"
#include "recurrent/cuda/device_run.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx_launch.cuh"

// A step in several launches, for cells that the kernels of step.cuh do not compute: R h, the cell or its first half,
// and of layers with a second product this one and the second half. Halves are elementwise kernels in the definition's
// lanes, so that they take every format. The state stays in a.state.
namespace qcore {

// `run_half(half)` launches the kernel of a half, 0 or 1.
void run_separate_step(const DeviceLayer& layer, const RecurrentSteps& a, cudaStream_t stream,
                       const std::function<void(int half)>& run_half);

constexpr int kSeparateThreads = 256;

// One thread for each of [batch, outputs], with padding.
LaunchShape separate_shape(const RecurrentSteps& a, std::int64_t outputs);

// The element of a thread.
struct SeparateItem {
  CellPlace place;
  std::int64_t j;
  bool in_row, valid;  // in_row: padding too, whose bytes may be written
};

__device__ __forceinline__ SeparateItem separate_item(const RecurrentSteps& a, std::int64_t step, std::int64_t outputs,
                                                      std::int64_t size) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSeparateThreads + threadIdx.x;
  const std::int64_t b = i / outputs, j = i - b * outputs;
  const bool in_row = b < a.batch, valid = in_row && j < size;
  return {{b, step, valid ? row_length(a.lengths, a.length_stride, b, a.steps) : 0}, j, in_row, valid};
}

__device__ __forceinline__ std::int32_t load_separate_state(const RecurrentSteps& a, std::int64_t b, std::int64_t j) {
  const char* from = a.state + b * a.state_bytes + j;
  const std::int64_t plane_bytes = a.rows * a.state_bytes;
  return (a.separate.state_planes == 2 ? load_planes<2>(from, plane_bytes) : load_planes<1>(from, plane_bytes)) -
         a.h.zero;
}

// Stores a code, whose neighbors in groups of four are those of the lanes beside. All lanes must call.
__device__ __forceinline__ void store_separate_planes(char* planes_of_rows, int planes, std::int64_t rows,
                                                      std::int64_t row_bytes, const SeparateItem& item,
                                                      std::int32_t code) {
  const std::uint32_t high = gather_plane<2>(code, 0), low = gather_plane<2>(code, 1);
  if (!item.in_row || threadIdx.x % 4 != 0) return;
  auto* to = reinterpret_cast<std::uint32_t*>(planes_of_rows + item.place.b * row_bytes + item.j);
  if (planes == 2) {
    *to = high;
    to += rows * row_bytes / 4;
  }
  *to = low;
}

__device__ __forceinline__ void store_separate_state(const RecurrentSteps& a, const SeparateItem& item,
                                                     std::int32_t centered) {
  store_separate_planes(a.state, a.separate.state_planes, a.rows, a.state_bytes, item, centered + a.h.zero);
}

__device__ __forceinline__ void store_second_input(const RecurrentSteps& a, const SeparateItem& item,
                                                   std::int32_t centered) {
  const SeparateStep& s = a.separate;
  store_separate_planes(s.inputs, s.product.planes, a.rows, s.row_bytes, item, centered + s.product.zero);
}

// Loads the codes of a channel's products with the state, less their zero point.
template <int kGates, class Integer>
__device__ __forceinline__ void load_separate_rh(const RecurrentSteps& a, const SeparateItem& item,
                                                 const numerics::CodeRange& range, Integer (&rh)[kGates], int gates) {
  const std::uint16_t* from = a.separate.rh + item.place.b * gates * a.channels + item.j;
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate)
    if (gate < gates) rh[gate] = from[gate * a.channels] + range.lo;
}

__device__ __forceinline__ std::int32_t load_second_result(const RecurrentSteps& a, const SeparateItem& item) {
  const SeparateStep& s = a.separate;
  return s.results[item.place.b * s.outputs + item.j] + s.product.range.lo;
}

}  // namespace qcore
