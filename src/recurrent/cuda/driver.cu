#include <algorithm>

#include "recurrent/cuda/driver.cuh"
#include "recurrent/cuda/fixed_codes.h"
#include "recurrent/cuda/input_product.cuh"
#include "recurrent/cuda/pack_steps.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

constexpr int kStateRows = 16;  // kernels read as many rows of states at a time, at most

// Scratch memory for `count` steps.
struct Arrays {
  ScratchPlan plan;
  ScratchSlot<char> inputs, states[2], second;
  ScratchSlot<std::uint16_t> wx, rh, results;
  ScratchSlot<std::int32_t> cells;
  std::int64_t input_rows = 0;

  Arrays(const DeviceLayer& layer, std::int64_t count, const RecurrentSteps& steps) {
    input_rows = round_up(count * steps.batch, kInputRows);
    inputs = plan.add<char>(layer.input_planes * input_rows * row_bytes_of(layer.input_size));
    const std::int64_t state_bytes = layer.state_planes * steps.rows * steps.state_bytes;
    states[0] = plan.add<char>(state_bytes);
    states[1] = plan.add<char>(layer.separate ? 0 : state_bytes);
    wx = plan.add<std::uint16_t>(count * steps.batch * layer.gates * steps.channels);
    cells = plan.add<std::int32_t>(layer.has_cell ? steps.batch * steps.channels : 0);
    const SeparateStep& separate = steps.separate;
    rh = plan.add<std::uint16_t>(layer.separate ? steps.batch * layer.state_gates * steps.channels : 0);
    second = plan.add<char>(separate.product.planes * steps.rows * separate.row_bytes);
    results = plan.add<std::uint16_t>(steps.batch * separate.outputs);
  }
};

PackRows pack_inputs(const RecurrentProblem& problem, const DeviceLayer& layer, const RecurrentSteps& a,
                     std::int64_t input_rows, char* to) {
  PackRows rows{};
  rows.from = device_view(problem.x);
  rows.format = layer.x;
  rows.planes = layer.input_planes;
  rows.rows = a.count * a.batch;
  rows.features = layer.input_size;
  rows.row_bytes = row_bytes_of(layer.input_size);
  rows.plane_bytes = input_rows * rows.row_bytes;
  rows.to = to;
  rows.lengths = a.lengths;
  rows.length_stride = a.length_stride;
  rows.reverse = a.reverse;
  rows.steps = a.steps;
  rows.first = a.first;
  rows.batch = a.batch;
  return rows;
}

PackRows pack_state(const RecurrentProblem& problem, const DeviceLayer& layer, const RecurrentSteps& a) {
  PackRows rows{};
  rows.from = device_view(problem.h0);
  rows.from.strides[2] = rows.from.strides[1];
  rows.from.strides[1] = rows.from.strides[0];
  rows.from.strides[0] = 0;
  rows.format = a.h;
  rows.planes = layer.state_planes;
  rows.rows = rows.batch = a.batch;
  rows.features = layer.state_size;
  rows.row_bytes = a.state_bytes;
  rows.plane_bytes = a.rows * a.state_bytes;
  rows.to = a.state;
  rows.steps = 1;
  return rows;
}

}  // namespace

void set_run(const RecurrentProblem& problem, const DeviceLayer& layer, RecurrentSteps& a) {
  a.overlap = compute_capability(problem.device.index) >= 90;
  a.h = layer.h;
  a.y = device_view(problem.y);
  a.last = device_view(problem.last);
  a.lengths = static_cast<const std::int32_t*>(problem.lengths.data);
  a.length_stride = a.lengths ? problem.lengths.strides[0] : 0;
  a.reverse = problem.reverse;
  a.steps = problem.steps;
  a.batch = problem.batch;
  a.rows = round_up(problem.batch, layer.separate ? kInputRows : kStateRows);
  a.size = layer.hidden_size;
  a.channels = padded_channels(layer.hidden_size);
  a.state_bytes = row_bytes_of(layer.state_size);
  a.separate.state_planes = layer.state_planes;
  a.separate.product = layer.second;
  a.separate.outputs = padded_channels(layer.second.outputs);
  a.separate.row_bytes = row_bytes_of(layer.second.features);
}

bool run_single_step(const RecurrentProblem& problem, const DeviceLayer& layer, RecurrentSteps& a,
                     const std::function<bool(const PackPair&)>& run) {
  if (a.steps != 1) return false;
  // A thread block reads all of h0 of its rows and writes a part of the last state.
  if (problem.h0.data && problem.last.data && share_memory(problem.h0, problem.last)) return false;
  if (problem.c0.data && problem.last_cell.data && share_memory(problem.c0, problem.last_cell)) return false;
  DeviceGuard guard(problem.device.index);
  a.count = 1;
  const bool ran = run({{pack_inputs(problem, layer, a, 0, nullptr), pack_state(problem, layer, a)}});
  a.count = 0;
  return ran;
}

void run_parts(const RecurrentProblem& problem, const DeviceLayer& layer, std::int64_t scratch_bytes, RecurrentSteps& a,
               const std::function<void()>& run_part) {
  DeviceGuard guard(problem.device.index);
  if (a.steps == 0) {
    if (problem.last.data) convert_fixed_cuda(problem.h0, layer.h, problem.last, problem.stream);
    if (problem.last_cell.data) convert_fixed_cuda(problem.c0, layer.c, problem.last_cell, problem.stream);
    return;
  }
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  // Take as many steps at once as fit in the scratch memory.
  const std::int64_t step_bytes =
      problem.batch * (layer.input_planes * row_bytes_of(layer.input_size) + 2 * layer.gates * a.channels);
  const std::int64_t most = std::clamp<std::int64_t>(scratch_bytes / step_bytes, 1, a.steps);
  const Arrays arrays(layer, most, a);
  const CudaScratch scratch(arrays.plan, problem.device.index, stream);
  a.state = scratch[arrays.states[0]];
  a.next_state = scratch[arrays.states[1]];
  a.wx = scratch[arrays.wx];
  a.cells = scratch[arrays.cells];
  a.separate.inputs = scratch[arrays.second];
  a.separate.rh = scratch[arrays.rh];
  a.separate.results = scratch[arrays.results];
  for (; a.first < a.steps; a.first += a.count) {
    a.count = std::min(most, a.steps - a.first);
    PackPair pair{};
    pair.rows[0] = pack_inputs(problem, layer, a, arrays.input_rows, scratch[arrays.inputs]);
    if (a.first == 0) pair.rows[1] = pack_state(problem, layer, a);
    pack_steps(pair, stream);
    const InputRows inputs{scratch[arrays.inputs], pair.rows[0].planes, pair.rows[0].rows, arrays.input_rows,
                           pair.rows[0].row_bytes};
    multiply_inputs(a, {a.arrays.w, layer.wx, layer.gates, layer.weight_planes, a.channels, scratch[arrays.wx]}, inputs,
                    stream);
    run_part();
  }
}

}  // namespace qcore
