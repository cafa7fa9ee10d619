#include "gru/cuda/device_cell.cuh"
#include "gru/cuda/step_kernels.cuh"
#include "recurrent/cuda/device_lanes.cuh"
#include "recurrent/cuda/separate/steps.cuh"

namespace qcore {
namespace {

using numerics::ShiftRounding;

template <ShiftRounding kRounding>
using Lanes = DeviceLanes<kRounding, std::int64_t>;

struct Inputs {
  std::int32_t wx[3], rh[3], h;
  std::int64_t biases[4];
};

struct Outputs {
  std::int32_t h, reset_state;
  std::int32_t gates[4];  // codes of z, r, g and rb
};

// The first half makes r * h, the second one the rest; both have z and r.
template <class L, class Stages>
__device__ __forceinline__ Outputs evaluate(const GruSteps& a, const Inputs& from, int half) {
  numerics::GruInputs<L> in;
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) in.wx[gate] = from.wx[gate], in.rh[gate] = from.rh[gate];
  in.h = from.h;
  const numerics::GruBiases<L> bias{from.biases[0], from.biases[1], from.biases[2], from.biases[3]};
  const numerics::GruTables<L> tables{L::table(a.arrays, 0), L::table(a.arrays, 1), L::table(a.arrays, 2)};
  numerics::GruOutputs<L> out{};
  numerics::gru_gates<L, Stages>(in, bias, a.cell, tables, out);
  const auto narrow = [](typename L::I value) { return static_cast<std::int32_t>(value); };
  if (half == 0) return {0, narrow(out.rrh), {}};
  numerics::gru_new_state<L, Stages>(in, bias, a.cell, tables, out);
  const typename L::I rb = Stages::kStaged ? out.rb : in.rh[2];
  return {narrow(out.h), 0, {narrow(out.z), narrow(out.r), narrow(out.g), narrow(rb) + a.rb_zero}};
}

template <class L>
__device__ __forceinline__ Outputs evaluate(const GruSteps& a, const Inputs& from, int half) {
  return a.fused ? evaluate<L, numerics::GruFusedResetCell<L>>(a, from, half)
                 : evaluate<L, numerics::GruStagedResetCell<L>>(a, from, half);
}

// Half of the cell of all channels.
__global__ void __launch_bounds__(kSeparateThreads)
    gru_cell_kernel(const __grid_constant__ GruSteps a, std::int64_t step, int half) {
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const SeparateItem item = separate_item(a, step, a.channels, a.size);
  Outputs out{};
  if (item.valid) {
    out.h = load_separate_state(a, item.place.b, item.j);
    if (step < item.place.length) {
      Inputs in{};
      std::uint16_t wx[3];
      load_wx(a, step, item.place.b, item.j, wx);
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) in.wx[gate] = wx[gate] + a.cell.wx.lo;
      load_separate_rh(a, item, a.cell.rh, in.rh, 2);
      if (half == 1) in.rh[2] = load_second_result(a, item);
      in.h = out.h;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!a.fused) in.biases[i] = a.arrays.vectors[i][item.j];
      out = a.half_even ? evaluate<Lanes<ShiftRounding::half_even>>(a, in, half)
                        : evaluate<Lanes<ShiftRounding::half_away>>(a, in, half);
    }
    if (half == 1)
      GruDeviceCell::store(a, item.place, item.j,
                           {{out.h, 0}, {out.gates[0], out.gates[1], out.gates[2], out.gates[3]}});
  }
  if (half == 0)
    store_second_input(a, item, out.reset_state);
  else
    store_separate_state(a, item, out.h);
}

}  // namespace

void run_gru_separate_step(const DeviceLayer& layer, const GruSteps& a, std::int64_t step, cudaStream_t stream) {
  run_separate_step(layer, a, stream, [&](int half) {
    launch("gru_cell", gru_cell_kernel, separate_shape(a, a.channels), stream, a, step, half);
  });
}

}  // namespace qcore
