#pragma once

#include "recurrent/cuda/device_cell.cuh"
#include "recurrent/cuda/state_product.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

// One step of all rows in a launch: R h and the cell, from a.state to a.next_state.
namespace qcore {

constexpr int kStepSlices = 4;  // of k; a warp has one, of one gate

template <class Cell>
constexpr int kStepThreads = Cell::kGates * kStepSlices * kWarpSize;

// A block has 16 channels of 8 * kColumns rows.
template <class Cell, class Steps, int kWeightPlanes, int kStatePlanes, int kColumns, auto kKind>
__global__ void __launch_bounds__(kStepThreads<Cell>, 1)
    recurrent_step_kernel(const __grid_constant__ Steps a, std::int64_t step) {
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  constexpr int kGates = Cell::kGates;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * 8 * kColumns;
  const std::int64_t plane_bytes = a.rows * a.state_bytes;
  ByteOperands from;
  from.steps = static_cast<int>(a.state_bytes / kStepK);
  from.weights = static_cast<const uint4*>(a.arrays.r.weights) +
                 static_cast<std::int64_t>(blockIdx.x) * kGates * kWeightPlanes * from.steps * 64 + lane;
  from.inputs = a.state + (first_row + lane / 4) * a.state_bytes + 16 * (lane % 4);
  from.input_plane = plane_bytes;
  from.input_tile = 8 * a.state_bytes;
  using Sum = StateSum<kWeightPlanes, kStatePlanes, kKind == Cell::Kind::any>;
  const Partials<Sum> partials{reinterpret_cast<Sum*>(dynamic_shared()), kGates, kStepSlices, 8 * kColumns};

  // One item for each thread of the first warps.
  const int column = thread / kTileRows, within = thread % kTileRows;
  const std::int64_t j = std::int64_t{blockIdx.x} * kTileRows + within, row = first_row + column;
  const bool active = column < 8 * kColumns;
  const bool valid = active && row < a.batch && j < a.size;
  CellInputs<kGates, Sum> in{};
  typename Cell::template Constants<Sum> constants{};
  CellPlace place{row, step, 0};
  if (valid) {
    place.length = row_length(a.lengths, a.length_stride, row, a.steps);
    load_wx(a, step, row, j, in.wx);
    Cell::load_state(a, place, j, in);
    Cell::template load_constants<kKind>(a, j, constants);
  }
  multiply_state<kWeightPlanes, kStatePlanes, kColumns, true>(from, unit_at(thread / kWarpSize, from.steps, partials),
                                                              partials);
  __syncthreads();
  if (!active) return;
  const std::int64_t at = row * a.state_bytes + j;
  typename Cell::Outputs out{};
  if (valid) {
    sum_partials(partials, 0, column, within, in.sums);
    in.state.h = load_planes<kStatePlanes>(a.state + at, plane_bytes) - a.h.zero;
    out = Cell::template evaluate<kKind>(a, place, constants, in);
    Cell::store(a, place, j, out);
  }
#pragma unroll
  for (int plane = 0; plane < kStatePlanes; ++plane) {
    const std::uint32_t word = gather_plane<kStatePlanes>(out.state.h + a.h.zero, plane);
    if (lane % 4 == 0) *reinterpret_cast<std::uint32_t*>(a.next_state + plane * plane_bytes + at) = word;
  }
}

template <class Cell, int kWeightPlanes, int kStatePlanes, int kColumns, auto... kKinds>
void launch_step(const typename Cell::Steps& a, std::int64_t step, cudaStream_t stream, CellKinds<kKinds...>) {
  void (*kernel)(typename Cell::Steps, std::int64_t) = nullptr;
  ((a.kind == kKinds
        ? kernel = recurrent_step_kernel<Cell, typename Cell::Steps, kWeightPlanes, kStatePlanes, kColumns, kKinds>
        : kernel),
   ...);
  const dim3 grid(static_cast<unsigned>(a.channels / kTileRows),
                  static_cast<unsigned>(ceil_div(a.batch, 8 * kColumns)));
  const auto shared =
      static_cast<std::size_t>(partial_count(Cell::kGates, kStepSlices, 8 * kColumns)) * sizeof(std::int64_t);
  LaunchShape shape{grid, dim3(kStepThreads<Cell>), shared};
  shape.overlap = a.overlap;
  launch(Cell::kStep, kernel, shape, stream, a, step);
}

// Cells in 64 bits have no instances for few rows: that keeps the library smaller.
template <class Cell, int kWeightPlanes, int kStatePlanes>
void launch_step(const typename Cell::Steps& a, std::int64_t step, cudaStream_t stream) {
  if (a.batch <= 8 && a.kind != Cell::Kind::any)
    return launch_step<Cell, kWeightPlanes, kStatePlanes, 1>(a, step, stream, typename Cell::NarrowKinds{});
  launch_step<Cell, kWeightPlanes, kStatePlanes, 2>(a, step, stream, typename Cell::Kinds{});
}

template <class Cell>
void launch_step(const DeviceLayer& layer, const typename Cell::Steps& a, std::int64_t step, cudaStream_t stream) {
  if (layer.weight_planes == 1)
    layer.state_planes == 1 ? launch_step<Cell, 1, 1>(a, step, stream) : launch_step<Cell, 1, 2>(a, step, stream);
  else
    layer.state_planes == 1 ? launch_step<Cell, 2, 1>(a, step, stream) : launch_step<Cell, 2, 2>(a, step, stream);
}

}  // namespace qcore
