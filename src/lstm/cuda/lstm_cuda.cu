#include <utility>

#include "lstm/cpu/packed.h"
#include "lstm/cuda/kernels.h"
#include "lstm/cuda/step_kernels.cuh"
#include "recurrent/cuda/driver.cuh"

namespace qcore {
namespace {

DeviceLayer layer_of(const LstmStorage& lstm) {
  const LstmParameters& p = lstm.parameters;
  DeviceLayer layer{};
  layer.input_size = p.input_size;
  layer.hidden_size = p.hidden_size;
  layer.state_size = p.state_size();
  layer.gates = numerics::kLstmGates;
  layer.weight_planes = planes_of(p.weight_bits);
  layer.input_planes = planes_of(p.formats.x.bits);
  layer.state_planes = planes_of(p.formats.h.bits);
  layer.has_cell = true;
  layer.x = lstm.x_format;
  layer.h = lstm.h_format;
  layer.c = lstm.c_format;
  layer.wx = lstm.cell.wx;
  layer.separate = lstm.cell.peepholes || p.projection_size > 0;
  layer.state_gates = layer.gates;
  layer.rh = lstm.cell.rh;
  const FixedFormat& m = p.formats.m;
  if (p.projection_size)
    layer.second = {p.hidden_size, p.projection_size, planes_of(m.bits), m.zero_point, range_of(p.formats.h)};
  return layer;
}

LstmCellKind cell_kind(const LstmStorage& lstm, const DeviceLayer& layer) {
  const LstmPacked* const packed = lstm.packed.get();
  return packed && !layer.separate &&
                 fits_lanes(layer, lstm.parameters.rounding, packed->layer.width, packed->layer.state)
             ? LstmCellKind::narrow
             : LstmCellKind::any;
}

LstmSteps steps_of(const LstmProblem& problem, const DeviceLayer& layer) {
  const LstmStorage& lstm = *problem.lstm;
  LstmSteps a{};
  set_run(problem, layer, a);
  a.arrays = lstm.on_device(problem.device.index);
  a.half_even = lstm.parameters.rounding == ShiftRounding::half_even;
  a.kind = cell_kind(lstm, layer);
  a.narrow = a.kind != LstmCellKind::any && lstm.packed->layer.width == LaneWidth::narrow;
  a.cell = a.kind == LstmCellKind::any ? lstm.cell : lstm.packed->layer.cell;
  a.c = layer.c;
  a.c0 = device_view(problem.c0);
  a.last_cell = device_view(problem.last_cell);
  return a;
}

}  // namespace

void run_lstm_cuda(const LstmProblem& problem, const RecurrentCudaOptions& options) {
  const DeviceLayer layer = layer_of(*problem.lstm);
  LstmSteps a = steps_of(problem, layer);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  if (options.single && !options.persistent && run_single_step(problem, layer, a, [&](const PackPair& pair) {
        return run_lstm_single_step(layer, a, pair, problem.device.index, stream);
      }))
    return;
  run_parts(problem, layer, options.scratch_bytes, a, [&] {
    if (options.persistent) {
      if (options.rows && run_lstm_row(layer, a, problem.device.index, stream)) return;
      return run_lstm_persistent(layer, a, plan_persistent(layer, problem.device.index, options.largest_cluster),
                                 stream);
    }
    for (std::int64_t step = a.first; step < a.first + a.count; ++step) {
      if (layer.separate) {
        run_lstm_separate_step(layer, a, step, stream);
        continue;
      }
      run_lstm_step(layer, a, step, stream);
      std::swap(a.state, a.next_state);
    }
  });
}

const char* lstm_cuda_unsupported_reason(const LstmProblem& problem) {
  return problem.device.type == DeviceType::cuda ? nullptr : "it runs on CUDA devices";
}

void run_lstm_cuda(const LstmProblem& problem) { run_lstm_cuda(problem, RecurrentCudaOptions{}); }

const char* lstm_persistent_unsupported_reason(const LstmProblem& problem) {
  if (const char* reason = lstm_cuda_unsupported_reason(problem)) return reason;
  const DeviceLayer layer = layer_of(*problem.lstm);
  if (layer.separate) return "the LSTM has peepholes or a projection (projection_size)";
  if (cell_kind(*problem.lstm, layer) == LstmCellKind::any)
    return "it rounds halves to even, or has numbers of more than 32 bits";
  return persistent_unsupported_reason(problem, layer);
}

void run_lstm_persistent(const LstmProblem& problem) {
  RecurrentCudaOptions options;
  options.persistent = true;
  run_lstm_cuda(problem, options);
}

}  // namespace qcore
