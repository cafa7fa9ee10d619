#include "gru/cuda/device_cell.cuh"
#include "gru/cuda/state_product.cuh"
#include "gru/cuda/step_kernels.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kGates = 3, kSlices = 4;  // a warp each
constexpr int kThreads = kGates * kSlices * kWarpSize;

// A block has 16 channels of 8 * kColumns rows.
template <int kWeightPlanes, int kStatePlanes, int kColumns, GruCellKind kKind>
__global__ void __launch_bounds__(kThreads, 1) gru_step_kernel(const __grid_constant__ GruSteps a, std::int64_t step) {
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * 8 * kColumns;
  const std::int64_t plane_bytes = a.rows * a.state_bytes;
  ByteOperands from;
  from.steps = static_cast<int>(a.state_bytes / kGruStepK);
  from.weights = static_cast<const uint4*>(a.arrays.r) +
                 static_cast<std::int64_t>(blockIdx.x) * kGates * kWeightPlanes * from.steps * 64 + lane;
  from.inputs = a.state + (first_row + lane / 4) * a.state_bytes + 16 * (lane % 4);
  from.input_plane = plane_bytes;
  from.input_tile = 8 * a.state_bytes;
  using Sum = StateSum<kWeightPlanes, kStatePlanes, kKind>;
  const Partials<Sum> partials{reinterpret_cast<Sum*>(dynamic_shared()), kGates, kSlices, 8 * kColumns};

  // One item for each thread of the first warps.
  const int column = thread / kGruRows, within = thread % kGruRows;
  const std::int64_t j = std::int64_t{blockIdx.x} * kGruRows + within, row = first_row + column;
  const bool active = column < 8 * kColumns;
  const bool valid = active && row < a.batch && j < a.size;
  CellInputs<Sum> in{};
  CellConstants<Sum> constants{};
  if (valid) {
    load_wx(a, step, row, j, in.wx);
    load_constants(a, kKind == GruCellKind::any ? a.fused : kKind == GruCellKind::fused, j, constants);
  }
  multiply_state<kWeightPlanes, kStatePlanes, kColumns, true>(from, unit_at(thread / kWarpSize, from.steps, partials),
                                                              partials);
  __syncthreads();
  if (!active) return;
  const std::int64_t at = row * a.state_bytes + j;
  CellOutputs out{};
  if (valid) {
    sum_partials(partials, 0, column, within, in.sums);
    in.h = load_planes<kStatePlanes>(a.state + at, plane_bytes) - a.h.zero;
    const CellPlace place{row, step, row_length(a.lengths, a.length_stride, row, a.steps)};
    out = evaluate_cell<kKind>(a, place, constants, in);
    store_cell(a, place, j, out);
  }
#pragma unroll
  for (int plane = 0; plane < kStatePlanes; ++plane) {
    const std::uint32_t word = gather_plane<kStatePlanes>(out.h + a.h.zero, plane);
    if (lane % 4 == 0) *reinterpret_cast<std::uint32_t*>(a.next_state + plane * plane_bytes + at) = word;
  }
}

template <int kWeightPlanes, int kStatePlanes, int kColumns>
void run(const GruSteps& a, std::int64_t step, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(a.channels / kGruRows), static_cast<unsigned>(ceil_div(a.batch, 8 * kColumns)));
  const auto shared = static_cast<std::size_t>(partial_count(kGates, kSlices, 8 * kColumns)) * sizeof(std::int64_t);
  const auto kernel =
      a.kind == GruCellKind::staged  ? gru_step_kernel<kWeightPlanes, kStatePlanes, kColumns, GruCellKind::staged>
      : a.kind == GruCellKind::fused ? gru_step_kernel<kWeightPlanes, kStatePlanes, kColumns, GruCellKind::fused>
                                     : gru_step_kernel<kWeightPlanes, kStatePlanes, kColumns, GruCellKind::any>;
  LaunchShape shape{grid, dim3(kThreads), shared};
  shape.overlap = a.overlap;
  launch("gru_step", kernel, shape, stream, a, step);
}

template <int kWeightPlanes, int kStatePlanes>
void run(const GruSteps& a, std::int64_t step, cudaStream_t stream) {
  a.batch <= 8 ? run<kWeightPlanes, kStatePlanes, 1>(a, step, stream)
               : run<kWeightPlanes, kStatePlanes, 2>(a, step, stream);
}

}  // namespace

void run_step(const GruSteps& a, std::int64_t step, int weight_planes, int state_planes, cudaStream_t stream) {
  if (weight_planes == 1)
    state_planes == 1 ? run<1, 1>(a, step, stream) : run<1, 2>(a, step, stream);
  else
    state_planes == 1 ? run<2, 1>(a, step, stream) : run<2, 2>(a, step, stream);
}

}  // namespace qcore
