#pragma once

#include "recurrent/cuda/device_layer.h"
#include "recurrent/problem.h"

namespace qcore {

struct RecurrentCudaOptions {
  bool single = true;  // a run of one step in one launch where that can be
  bool persistent = false;
  bool rows = true;         // with `persistent`: a thread block for each row where R fits in its registers
  int largest_cluster = 8;  // that every device with clusters runs
  // Limit of the scratch memory for inputs, unless one step takes more.
  std::int64_t scratch_bytes = std::int64_t{256} << 20;
};

// How a cluster of thread blocks, each with a part of R in its shared memory, runs all steps of some rows.
struct PersistentPlan {
  int cluster = 0;        // thread blocks; 0: R does not fit
  int channel_tiles = 0;  // of 16 channels, in a block
  int slices = 0;         // of k
  int column_bytes = 0;   // from row to row of the state in shared memory
  std::int64_t shared_bytes = 0;
};
constexpr int kPersistentWarps = 16;
constexpr int kClusterRows = 8;
constexpr int kBarrierBytes = 64;  // of shared memory, before the states

// Warps share the k of a product in slices, and leave partial sums in shared memory: [slice, tile, column] of
// kPartialRows rows, 16 of them used, so far apart that lanes meet in few banks.
constexpr int kMaxSlices = 4, kPartialRows = 20;

constexpr std::int64_t partial_count(int tiles, int slices, int columns) {
  return std::int64_t{1} * tiles * slices * columns * kPartialRows;
}

// A cluster has at most `largest_cluster` thread blocks; one where the device has no clusters.
PersistentPlan plan_persistent(const DeviceLayer& layer, int device, int largest_cluster);

// Returns why the kernel is not for the problem, which lies on a CUDA device; null if it is.
const char* persistent_unsupported_reason(const RecurrentProblem& problem, const DeviceLayer& layer);

}  // namespace qcore
