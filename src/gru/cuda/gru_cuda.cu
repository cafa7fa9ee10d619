#include <utility>

#include "gru/cpu/gru_packed.h"
#include "gru/cuda/kernels.h"
#include "gru/cuda/step_kernels.cuh"
#include "recurrent/cuda/driver.cuh"

namespace qcore {
namespace {

DeviceLayer layer_of(const GruStorage& gru) {
  const GruParameters& p = gru.parameters;
  DeviceLayer layer{};
  layer.input_size = p.input_size;
  layer.hidden_size = layer.state_size = p.hidden_size;
  layer.gates = 3;
  layer.weight_planes = planes_of(p.weight_bits);
  layer.input_planes = planes_of(p.formats.x.bits);
  layer.state_planes = planes_of(p.formats.h.bits);
  layer.x = gru.x_format;
  layer.h = gru.h_format;
  layer.wx = gru.cell.wx;
  layer.separate = !p.linear_before_reset;
  layer.state_gates = layer.separate ? 2 : 3;
  layer.rh = gru.cell.rh;
  const FixedFormat& reset = p.formats.rrh;
  if (layer.separate) layer.second = {p.hidden_size, p.hidden_size, planes_of(reset.bits), reset.zero_point, layer.rh};
  return layer;
}

GruCellKind cell_kind(const GruStorage& gru, const DeviceLayer& layer) {
  const GruParameters& p = gru.parameters;
  if (!gru.packed || layer.separate || !fits_lanes(layer, p.rounding, gru.packed->layer.width, gru.packed->layer.state))
    return GruCellKind::any;
  return p.pipeline == GruPipeline::fused ? GruCellKind::fused : GruCellKind::staged;
}

GruSteps steps_of(const GruProblem& problem, const DeviceLayer& layer) {
  const GruStorage& gru = *problem.gru;
  const GruParameters& p = gru.parameters;
  GruSteps a{};
  set_run(problem, layer, a);
  a.arrays = gru.on_device(problem.device.index);
  a.half_even = p.rounding == ShiftRounding::half_even;
  a.kind = cell_kind(gru, layer);
  a.narrow = a.kind != GruCellKind::any && gru.packed->layer.width == LaneWidth::narrow;
  a.cell = a.kind == GruCellKind::any ? gru.cell : gru.packed->layer.cell;
  a.fused = p.pipeline == GruPipeline::fused;
  a.rb_zero = a.fused ? p.formats.rh.zero_point : p.formats.rb.zero_point;
  a.gates = device_view(problem.gates);
  return a;
}

}  // namespace

void run_gru_cuda(const GruProblem& problem, const RecurrentCudaOptions& options) {
  const DeviceLayer layer = layer_of(*problem.gru);
  GruSteps a = steps_of(problem, layer);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  if (options.single && !options.persistent && run_single_step(problem, layer, a, [&](const PackPair& pair) {
        return run_gru_single_step(layer, a, pair, problem.device.index, stream);
      }))
    return;
  run_parts(problem, layer, options.scratch_bytes, a, [&] {
    if (options.persistent) {
      if (options.rows && run_gru_row(layer, a, problem.device.index, stream)) return;
      return run_gru_persistent(layer, a, plan_persistent(layer, problem.device.index, options.largest_cluster),
                                stream);
    }
    for (std::int64_t step = a.first; step < a.first + a.count; ++step) {
      if (layer.separate) {
        run_gru_separate_step(layer, a, step, stream);
        continue;
      }
      run_gru_step(layer, a, step, stream);
      std::swap(a.state, a.next_state);
    }
  });
}

const char* gru_cuda_unsupported_reason(const GruProblem& problem) {
  return problem.device.type == DeviceType::cuda ? nullptr : "it runs on CUDA devices";
}

void run_gru_cuda(const GruProblem& problem) { run_gru_cuda(problem, RecurrentCudaOptions{}); }

const char* gru_persistent_unsupported_reason(const GruProblem& problem) {
  if (const char* reason = gru_cuda_unsupported_reason(problem)) return reason;
  if (!problem.gru->parameters.linear_before_reset) return "linear_before_reset is 0: a step has two products";
  return persistent_unsupported_reason(problem, layer_of(*problem.gru));
}

void run_gru_persistent(const GruProblem& problem) {
  RecurrentCudaOptions options;
  options.persistent = true;
  run_gru_cuda(problem, options);
}

}  // namespace qcore
