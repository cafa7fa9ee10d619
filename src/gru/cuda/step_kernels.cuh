#pragma once

#include "gru/cuda/steps.cuh"
#include "recurrent/cuda/pack_steps.cuh"
#include "recurrent/cuda/persistent_plan.h"

namespace qcore {

// One step of all rows, from a.state to a.next_state.
void run_gru_step(const DeviceLayer& layer, const GruSteps& a, std::int64_t step, cudaStream_t stream);

// The same in several launches, in a.state; of cells with linear_before_reset = 0.
void run_gru_separate_step(const DeviceLayer& layer, const GruSteps& a, std::int64_t step, cudaStream_t stream);

// All of a.count steps; a.state gets the last states.
void run_gru_persistent(const DeviceLayer& layer, const GruSteps& a, const PersistentPlan& plan, cudaStream_t stream);

// The same with a thread block for each row, which keeps R in registers; false, and nothing done, where that can't be.
bool run_gru_row(const DeviceLayer& layer, const GruSteps& a, int device, cudaStream_t stream);

// A run of one step, from the caller's arrays; false, and nothing done, where that can't be.
bool run_gru_single_step(const DeviceLayer& layer, const GruSteps& a, const PackPair& pair, int device,
                         cudaStream_t stream);

}  // namespace qcore
