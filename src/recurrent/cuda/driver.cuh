#pragma once

#include <functional>

#include "qcore/recurrent/fixed_format.h"
#include "recurrent/cpu/vtable.h"
#include "recurrent/cuda/device_run.cuh"
#include "recurrent/cuda/pack_steps.cuh"
#include "recurrent/cuda/persistent_plan.h"
#include "recurrent/problem.h"

namespace qcore {

// Returns whether a cell's numbers and sums fit in DeviceLanes, by what was proven when the layer was packed.
inline bool fits_lanes(const DeviceLayer& layer, ShiftRounding rounding, LaneWidth width, const CodeProduct& state) {
  // Sums of products of single planes are int32.
  const bool sums_fit = layer.weight_planes + layer.state_planes > 2 || state.narrow;
  return rounding == ShiftRounding::half_away && width != LaneWidth::scalar && sums_fit;
}

// Sets what follows from the problem and the layer; the arrays and what is the cell's own are the caller's to set.
void set_run(const RecurrentProblem& problem, const DeviceLayer& layer, RecurrentSteps& a);

// Calls run(x and the state before the first step, to be packed) on the problem's device, and returns what it does:
// whether it ran a run of one step.
bool run_single_step(const RecurrentProblem& problem, const DeviceLayer& layer, RecurrentSteps& a,
                     const std::function<bool(const PackPair&)>& run);

// Computes W x of as many steps at once as fit in the scratch memory, then calls run_part(), which runs a.count steps
// from a.first on, and so on. A run without steps only hands its states through.
void run_parts(const RecurrentProblem& problem, const DeviceLayer& layer, std::int64_t scratch_bytes, RecurrentSteps& a,
               const std::function<void()>& run_part);

}  // namespace qcore
