#pragma once

#include "recurrent/cuda/device_cell.cuh"
#include "recurrent/cuda/input_product.cuh"
#include "recurrent/cuda/pack_steps.cuh"
#include "recurrent/cuda/state_product.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/cuda/ptx_memory.cuh"
#include "runtime/memory.h"

// A run of one step in one launch, without scratch memory: a thread block makes planes of bytes of its rows' x and h,
// multiplies both, and computes the cell.
namespace qcore {

constexpr int kSingleRows = 8, kSingleSlices = 4;  // of the batch in a thread block; of k, a warp has one of one gate

template <class Cell>
constexpr int kSingleThreads = Cell::kGates * kSingleSlices * kWarpSize;

// x and the state before the step, and how their rows lie in shared memory; W's codes.
struct SingleStep {
  PackPair pair;
  int pitch[2];
  numerics::CodeRange wx;
};

// A block has 16 channels of 8 rows: with 16 rows, a step of 64 rows and 512 channels took half as long again.
template <class Cell, class Steps, int kWeightPlanes, int kPlanes, auto kKind>
__global__ void __launch_bounds__(kSingleThreads<Cell>, 1)
    recurrent_single_step_kernel(const __grid_constant__ Steps a, const __grid_constant__ SingleStep single) {
  ptx::let_next_kernel_start();
  constexpr int kGates = Cell::kGates, kThreads = kSingleThreads<Cell>;
  using Sum = StateSum<kWeightPlanes, kPlanes, kKind == Cell::Kind::any>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize, warp = thread / kWarpSize;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kSingleRows;

  char* planes[2];
  planes[0] = dynamic_shared();
  planes[1] = planes[0] + kPlanes * kSingleRows * single.pitch[0];
  auto* const input_sums = reinterpret_cast<std::int64_t*>(planes[1] + kPlanes * kSingleRows * single.pitch[1]);
  constexpr std::int64_t kSums = partial_count(kGates, kSingleSlices, kSingleRows);
  const Partials<std::int64_t> inputs{input_sums, kGates, kSingleSlices, kSingleRows};
  const Partials<Sum> states{reinterpret_cast<Sum*>(input_sums + kSums), kGates, kSingleSlices, kSingleRows};
  // The operands of both products; weights are asked for before anything waits.
  ByteOperands from[2];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const DeviceProduct& product = part == 0 ? a.arrays.w : a.arrays.r;
    const int pitch = single.pitch[part];
    from[part].steps = static_cast<int>(single.pair.rows[part].row_bytes / kStepK);
    from[part].weights = static_cast<const uint4*>(product.weights) +
                         static_cast<std::int64_t>(blockIdx.x) * kGates * kWeightPlanes * from[part].steps * 64 + lane;
    from[part].inputs = planes[part] + lane / 4 * pitch + 16 * (lane % 4);
    from[part].input_plane = kSingleRows * pitch;
    from[part].input_tile = 8 * pitch;
    const StateUnit unit = unit_at(warp, from[part].steps, states);
    for (int step = unit.begin; step < unit.end; ++step)
#pragma unroll
      for (int plane = 0; plane < kWeightPlanes; ++plane) {
        const uint4* rows = from[part].weights + ((unit.tile * kWeightPlanes + plane) * from[part].steps + step) * 64;
        ptx::prefetch(rows), ptx::prefetch(rows + kWarpSize);
      }
  }
  ptx::wait_for_earlier_kernels();

  // One item for each thread of the first warps.
  const int column = thread / kTileRows, within = thread % kTileRows;
  const std::int64_t j = std::int64_t{blockIdx.x} * kTileRows + within, row = first_row + column;
  const bool valid = column < kSingleRows && row < a.batch && j < a.size;
  CellInputs<kGates, Sum> in{};
  typename Cell::template Constants<Sum> constants{};
  CellConstants<kGates, std::int64_t> input_constants{};
  CellPlace place{row, 0, 0};
  if (valid) {
    place.length = row_length(a.lengths, a.length_stride, row, a.steps);
    Cell::load_state(a, place, j, in);
    Cell::template load_constants<kKind>(a, j, constants);
    load_product_constants(a.arrays.w, a.channels, j, input_constants);
  }

#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const PackRows& p = single.pair.rows[part];
    const int words = static_cast<int>(p.row_bytes / 4), pitch = single.pitch[part];
    for (int i = thread; i < kSingleRows * words; i += kThreads) {
      const int of = i / words, word = i - of * words;
      PackedWord packed{};
      if (first_row + of < a.batch) packed = pack_word(p, first_row + of, 0, word);
      char* const to = planes[part] + of * pitch + 4 * word;
      *reinterpret_cast<std::uint32_t*>(to) = kPlanes == 2 ? packed.high : packed.low;
      if (kPlanes == 2) *reinterpret_cast<std::uint32_t*>(to + kSingleRows * pitch) = packed.low;
    }
  }
  __syncthreads();

  multiply_state<kWeightPlanes, kPlanes, 1, false>(from[0], unit_at(warp, from[0].steps, inputs), inputs);
  multiply_state<kWeightPlanes, kPlanes, 1, false>(from[1], unit_at(warp, from[1].steps, states), states);
  __syncthreads();
  if (!valid) return;
  std::int64_t totals[kGates];
  sum_partials(inputs, 0, column, within, totals);
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate)
    in.wx[gate] = product_code(totals[gate] + input_constants.offsets[gate], input_constants.shifts[gate], a.half_even,
                               single.wx);
  sum_partials(states, 0, column, within, in.sums);
  const int pitch = single.pitch[1];
  in.state.h = load_planes<kPlanes>(planes[1] + column * pitch + j, kSingleRows * pitch) - a.h.zero;
  Cell::store(a, place, j, Cell::template evaluate<kKind>(a, place, constants, in));
}

template <class Cell, int kWeightPlanes, int kPlanes, auto... kKinds>
bool launch_single_step(const typename Cell::Steps& a, const SingleStep& single, int device, cudaStream_t stream,
                        CellKinds<kKinds...>) {
  void (*kernel)(typename Cell::Steps, SingleStep) = nullptr;
  ((a.kind == kKinds ? kernel = recurrent_single_step_kernel<Cell, typename Cell::Steps, kWeightPlanes, kPlanes, kKinds>
                     : kernel),
   ...);
  if (kernel == nullptr) return false;
  const std::int64_t bytes = std::int64_t{kPlanes} * kSingleRows * (single.pitch[0] + single.pitch[1]) +
                             2 * partial_count(Cell::kGates, kSingleSlices, kSingleRows) * std::int64_t{8};
  if (bytes > most_shared_bytes(device)) return false;
  LaunchShape shape{
      dim3(static_cast<unsigned>(a.channels / kTileRows), static_cast<unsigned>(ceil_div(a.batch, kSingleRows))),
      dim3(kSingleThreads<Cell>), static_cast<std::size_t>(bytes)};
  shape.overlap = a.overlap;
  launch(Cell::kSingle, kernel, shape, stream, a, single);
  return true;
}

// Runs a run of one step, if it is for the kernel.
template <class Cell>
bool launch_single_step(const DeviceLayer& layer, const typename Cell::Steps& a, const PackPair& pair, int device,
                        cudaStream_t stream) {
  // Each thread block of a row makes its planes again, which takes longer than one launch more for large inputs.
  constexpr std::int64_t kMaxRows = 128, kMaxBytes = 2048;
  const std::int64_t input_bytes = pair.rows[0].row_bytes, state_bytes = pair.rows[1].row_bytes;
  if (a.steps != 1 || a.batch > kMaxRows || layer.separate || layer.input_planes != layer.state_planes) return false;
  if (input_bytes > kMaxBytes || state_bytes > kMaxBytes) return false;
  SingleStep single{pair, {}, layer.wx};
  // 64 bytes off a multiple of 128: two columns of a 16-byte load then lie in different banks.
  for (int part = 0; part < 2; ++part) {
    const auto bytes = static_cast<int>(pair.rows[part].row_bytes);
    single.pitch[part] = bytes + (bytes % 128 ? 0 : kStepK);
  }
  constexpr typename Cell::NarrowKinds kKinds{};
  if (layer.weight_planes == 1)
    return layer.state_planes == 1 ? launch_single_step<Cell, 1, 1>(a, single, device, stream, kKinds)
                                   : launch_single_step<Cell, 1, 2>(a, single, device, stream, kKinds);
  return layer.state_planes == 1 ? launch_single_step<Cell, 2, 1>(a, single, device, stream, kKinds)
                                 : launch_single_step<Cell, 2, 2>(a, single, device, stream, kKinds);
}

}  // namespace qcore
