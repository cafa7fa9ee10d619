#include "lstm/cuda/device_cell.cuh"
#include "lstm/cuda/step_kernels.cuh"
#include "recurrent/cuda/device_lanes.cuh"
#include "recurrent/cuda/separate/steps.cuh"

namespace qcore {
namespace {

using numerics::kLstmGates;
using numerics::kLstmPeepholes;
using numerics::ShiftRounding;

template <ShiftRounding kRounding>
using Lanes = DeviceLanes<kRounding, std::int64_t>;

struct Inputs {
  std::int32_t wx[kLstmGates], rh[kLstmGates], peepholes[kLstmPeepholes], c;
};

// Returns m and c.
template <class L>
__device__ __forceinline__ CellState evaluate(const LstmSteps& a, const Inputs& from) {
  numerics::LstmInputs<L> in;
#pragma unroll
  for (int gate = 0; gate < kLstmGates; ++gate) in.wx[gate] = from.wx[gate], in.rh[gate] = from.rh[gate];
#pragma unroll
  for (int i = 0; i < kLstmPeepholes; ++i) in.peepholes[i] = from.peepholes[i];
  in.c = from.c;
  const numerics::LstmTables<L> tables{
      {L::table(a.arrays, 0), L::table(a.arrays, 1), L::table(a.arrays, 2), L::table(a.arrays, 3)},
      L::table(a.arrays, 4)};
  const auto out = numerics::lstm_cell<L, true>(in, a.cell, tables);
  return {static_cast<std::int32_t>(out.m), static_cast<std::int32_t>(out.c)};
}

// The cell of all channels. A cell without peepholes has zeros for them, which change nothing.
__global__ void __launch_bounds__(kSeparateThreads)
    lstm_cell_kernel(const __grid_constant__ LstmSteps a, std::int64_t step) {
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const SeparateItem item = separate_item(a, step, a.channels, a.size);
  const bool projects = a.separate.product.features > 0;
  CellState state{};
  if (item.valid) {
    if (!projects) state.h = load_separate_state(a, item.place.b, item.j);
    state.c = LstmDeviceCell::load_cell(a, item.place, item.j);
    if (step < item.place.length) {
      Inputs in{};
      std::uint16_t wx[kLstmGates];
      load_wx(a, step, item.place.b, item.j, wx);
#pragma unroll
      for (int gate = 0; gate < kLstmGates; ++gate) in.wx[gate] = wx[gate] + a.cell.wx.lo;
      load_separate_rh(a, item, a.cell.rh, in.rh, kLstmGates);
#pragma unroll
      for (int i = 0; i < kLstmPeepholes; ++i)
        if (a.cell.peepholes) in.peepholes[i] = static_cast<std::int32_t>(a.arrays.vectors[i][item.j]);
      in.c = state.c;
      state = a.half_even ? evaluate<Lanes<ShiftRounding::half_even>>(a, in)
                          : evaluate<Lanes<ShiftRounding::half_away>>(a, in);
    }
    if (!projects) store_state(a, item.place, item.j, state.h);
    LstmDeviceCell::store_cell(a, item.place, item.j, state.c);
  }
  if (projects)
    store_second_input(a, item, state.h);
  else
    store_separate_state(a, item, state.h);
}

// Hands on the projection of m, or the state before of rows that are over.
__global__ void __launch_bounds__(kSeparateThreads)
    lstm_projection_kernel(const __grid_constant__ LstmSteps a, std::int64_t step) {
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const SeparateItem item = separate_item(a, step, a.separate.outputs, a.separate.product.outputs);
  std::int32_t h = 0;
  if (item.valid) {
    h = step < item.place.length ? load_second_result(a, item) : load_separate_state(a, item.place.b, item.j);
    store_state(a, item.place, item.j, h);
  }
  store_separate_state(a, item, h);
}

}  // namespace

void run_lstm_separate_step(const DeviceLayer& layer, const LstmSteps& a, std::int64_t step, cudaStream_t stream) {
  run_separate_step(layer, a, stream, [&](int half) {
    if (half == 0)
      launch("lstm_cell", lstm_cell_kernel, separate_shape(a, a.channels), stream, a, step);
    else
      launch("lstm_projection", lstm_projection_kernel, separate_shape(a, a.separate.outputs), stream, a, step);
  });
}

}  // namespace qcore
