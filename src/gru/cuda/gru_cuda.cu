#include <algorithm>

#include "gru/cpu/gru_packed.h"
#include "gru/cuda/input_product.cuh"
#include "gru/cuda/kernels.h"
#include "gru/cuda/pack_steps.cuh"
#include "gru/cuda/step_kernels.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

PersistentPlan plan_of(const GruProblem& problem, const GruCudaOptions& options) {
  const GruParameters& p = problem.gru->parameters;
  const int device = problem.device.index;
  return plan_persistent(p.hidden_size, gru_planes(p.weight_bits), gru_planes(p.formats.h.bits),
                         most_shared_bytes(device), compute_capability(device) >= 90 ? options.largest_cluster : 1);
}

// Scratch memory for `count` steps.
struct Arrays {
  ScratchPlan plan;
  ScratchSlot<char> inputs, states[2];
  ScratchSlot<std::uint16_t> wx;
  std::int64_t input_rows = 0;

  Arrays(const GruProblem& problem, std::int64_t count, const GruSteps& steps) {
    const GruParameters& p = problem.gru->parameters;
    input_rows = round_up(count * problem.batch, kInputRows);
    inputs = plan.add<char>(gru_planes(p.formats.x.bits) * input_rows * gru_row_bytes(p.input_size));
    for (auto& state : states) state = plan.add<char>(gru_planes(p.formats.h.bits) * steps.rows * steps.state_bytes);
    wx = plan.add<std::uint16_t>(count * problem.batch * 3 * steps.channels);
  }
};

GruCellKind cell_kind(const GruStorage& gru) {
  const GruParameters& p = gru.parameters;
  if (p.rounding != ShiftRounding::half_away || !gru.packed || gru.packed->layer.width == LaneWidth::scalar)
    return GruCellKind::any;
  // Sums of products of single planes are int32.
  if (gru_planes(p.weight_bits) + gru_planes(p.formats.h.bits) == 2 && !gru.packed->layer.state.narrow)
    return GruCellKind::any;
  return p.pipeline == GruPipeline::fused ? GruCellKind::fused : GruCellKind::staged;
}

GruSteps steps_of(const GruProblem& problem) {
  const GruStorage& gru = *problem.gru;
  const GruParameters& p = gru.parameters;
  GruSteps a{};
  a.arrays = gru.on_device(problem.device.index);
  a.kind = cell_kind(gru);
  a.overlap = compute_capability(problem.device.index) >= 90;
  a.cell = a.kind == GruCellKind::any ? gru.cell : gru.packed->layer.cell;
  a.h = CodeFormat(p.formats.h);
  a.fused = p.pipeline == GruPipeline::fused;
  a.rb_zero = a.fused ? p.formats.rh.zero_point : p.formats.rb.zero_point;
  a.half_even = p.rounding == ShiftRounding::half_even;
  a.y = device_view(problem.y);
  a.last = device_view(problem.last);
  a.gates = device_view(problem.gates);
  a.lengths = static_cast<const std::int32_t*>(problem.lengths.data);
  a.length_stride = a.lengths ? problem.lengths.strides[0] : 0;
  a.reverse = problem.reverse;
  a.steps = problem.steps;
  a.batch = problem.batch;
  a.rows = round_up(problem.batch, kStepRows);
  a.size = p.hidden_size;
  a.channels = gru_channels(p.hidden_size);
  a.state_bytes = gru_row_bytes(p.hidden_size);
  return a;
}

PackRows pack_inputs(const GruProblem& problem, const GruSteps& a, const Arrays& arrays, char* to) {
  const GruParameters& p = problem.gru->parameters;
  PackRows rows{};
  rows.from = device_view(problem.x);
  rows.format = CodeFormat(p.formats.x);
  rows.planes = gru_planes(p.formats.x.bits);
  rows.rows = a.count * a.batch;
  rows.features = p.input_size;
  rows.row_bytes = gru_row_bytes(p.input_size);
  rows.plane_bytes = arrays.input_rows * rows.row_bytes;
  rows.to = to;
  rows.lengths = a.lengths;
  rows.length_stride = a.length_stride;
  rows.reverse = a.reverse;
  rows.steps = a.steps;
  rows.first = a.first;
  rows.batch = a.batch;
  return rows;
}

PackRows pack_state(const GruProblem& problem, const GruSteps& a) {
  PackRows rows{};
  rows.from = device_view(problem.h0);
  rows.from.strides[2] = rows.from.strides[1];
  rows.from.strides[1] = rows.from.strides[0];
  rows.from.strides[0] = 0;
  rows.format = a.h;
  rows.planes = gru_planes(problem.gru->parameters.formats.h.bits);
  rows.rows = rows.batch = a.batch;
  rows.features = a.size;
  rows.row_bytes = a.state_bytes;
  rows.plane_bytes = a.rows * a.state_bytes;
  rows.to = a.state;
  rows.steps = 1;
  return rows;
}

}  // namespace

void run_gru_cuda(const GruProblem& problem, const GruCudaOptions& options) {
  const GruParameters& p = problem.gru->parameters;
  const int weight_planes = gru_planes(p.weight_bits), state_planes = gru_planes(p.formats.h.bits);
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  GruSteps a = steps_of(problem);
  // Take as many steps at once as fit in the scratch memory.
  const std::int64_t step_bytes =
      problem.batch * (gru_planes(p.formats.x.bits) * gru_row_bytes(p.input_size) + 6 * a.channels);
  const std::int64_t most =
      std::clamp<std::int64_t>(options.scratch_bytes / step_bytes, 1, std::max<std::int64_t>(a.steps, 1));
  const Arrays arrays(problem, std::min(most, a.steps), a);
  const CudaScratch scratch(arrays.plan, problem.device.index, stream);
  a.state = scratch[arrays.states[0]];
  a.next_state = scratch[arrays.states[1]];
  a.wx = scratch[arrays.wx];
  do {
    a.count = std::min(most, a.steps - a.first);
    PackPair pair{};
    pair.rows[0] = pack_inputs(problem, a, arrays, scratch[arrays.inputs]);
    if (a.first == 0) pair.rows[1] = pack_state(problem, a);
    if (a.steps == 0) pair.last = a.last;
    pack_steps(pair, stream);
    if (a.count == 0) return;
    const InputRows inputs{scratch[arrays.inputs], pair.rows[0].planes, pair.rows[0].rows, arrays.input_rows,
                           pair.rows[0].row_bytes};
    multiply_inputs(a, inputs, weight_planes, scratch[arrays.wx], stream);
    if (options.persistent)
      run_persistent(a, plan_of(problem, options), weight_planes, state_planes, stream);
    else
      for (std::int64_t step = a.first; step < a.first + a.count; ++step) {
        run_step(a, step, weight_planes, state_planes, stream);
        std::swap(a.state, a.next_state);
      }
    a.first += a.count;
  } while (a.first < a.steps);
}

const char* gru_cuda_unsupported_reason(const GruProblem& problem) {
  return problem.device.type == DeviceType::cuda ? nullptr : "it runs on CUDA devices";
}

void run_gru_cuda(const GruProblem& problem) { run_gru_cuda(problem, GruCudaOptions{}); }

const char* gru_persistent_unsupported_reason(const GruProblem& problem) {
  if (const char* reason = gru_cuda_unsupported_reason(problem)) return reason;
  // Clusters that wait for others are slower than all multiprocessors at one step after the other.
  constexpr std::int64_t kMaxRows = 128;
  if (problem.steps < 2) return "it has less than two steps";
  if (problem.batch > kMaxRows) return "it has more than 128 rows";
  return plan_of(problem, GruCudaOptions{}).cluster > 0 ? nullptr
                                                        : "R takes more than 128 KB of shared memory per thread block";
}

void run_gru_persistent(const GruProblem& problem) {
  GruCudaOptions options;
  options.persistent = true;
  run_gru_cuda(problem, options);
}

}  // namespace qcore
