#pragma once

#include "lstm/cuda/steps.cuh"
#include "recurrent/cuda/pack_steps.cuh"
#include "recurrent/cuda/persistent_plan.h"

namespace qcore {

// One step of all rows, from a.state to a.next_state.
void run_lstm_step(const DeviceLayer& layer, const LstmSteps& a, std::int64_t step, cudaStream_t stream);

// The same in several launches, in a.state; of cells with peepholes and of layers with a projection.
void run_lstm_separate_step(const DeviceLayer& layer, const LstmSteps& a, std::int64_t step, cudaStream_t stream);

// All of a.count steps; a.state gets the last states.
void run_lstm_persistent(const DeviceLayer& layer, const LstmSteps& a, const PersistentPlan& plan, cudaStream_t stream);

// The same with a thread block for each row, which keeps R in registers; false, and nothing done, where that can't be.
bool run_lstm_row(const DeviceLayer& layer, const LstmSteps& a, int device, cudaStream_t stream);

// A run of one step, from the caller's arrays; false, and nothing done, where that can't be.
bool run_lstm_single_step(const DeviceLayer& layer, const LstmSteps& a, const PackPair& pair, int device,
                          cudaStream_t stream);

}  // namespace qcore
