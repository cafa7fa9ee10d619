#pragma once

#include "gru/cuda/device_run.cuh"

namespace qcore {

// One step of all rows: R h and the cell, from a.state to a.next_state.
void run_step(const GruSteps& a, std::int64_t step, int weight_planes, int state_planes, cudaStream_t stream);
constexpr int kStepRows = 16;  // a.rows is a multiple of it

// How a cluster of thread blocks, each with a part of R in its shared memory, runs all steps of some rows.
struct PersistentPlan {
  int cluster = 0;        // thread blocks; 0: R does not fit
  int channel_tiles = 0;  // of 16 channels, in a block
  int slices = 0;         // of k
  int column_bytes = 0;   // from row to row of the state in shared memory
  std::int64_t shared_bytes = 0;
};
PersistentPlan plan_persistent(std::int64_t size, int weight_planes, int state_planes, std::int64_t most_shared_bytes,
                               int largest_cluster);
constexpr int kClusterRows = 8;

// All of a.count steps; a.state gets the last states.
void run_persistent(const GruSteps& a, const PersistentPlan& plan, int weight_planes, int state_planes,
                    cudaStream_t stream);

}  // namespace qcore
