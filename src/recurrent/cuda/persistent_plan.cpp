#include <algorithm>

// Compiled with the CUDA backend only.
#include "recurrent/cuda/persistent_plan.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/memory.h"

namespace qcore {

PersistentPlan plan_persistent(const DeviceLayer& layer, int device, int largest_cluster) {
  if (compute_capability(device) < 90) largest_cluster = 1;
  const std::int64_t tiles = padded_channels(layer.hidden_size) / kTileRows,
                     row_bytes = row_bytes_of(layer.hidden_size);
  const int steps = static_cast<int>(row_bytes / kStepK);
  PersistentPlan plan;
  plan.channel_tiles = static_cast<int>(ceil_div(tiles, std::min<std::int64_t>(tiles, largest_cluster)));
  plan.cluster = static_cast<int>(ceil_div(tiles, plan.channel_tiles));  // each has a tile at least
  // 64 bytes off a multiple of 128: two columns of a 16-byte load then lie in different banks.
  plan.column_bytes = static_cast<int>(row_bytes + (steps % 2 ? 0 : kStepK));
  const int block_tiles = layer.gates * plan.channel_tiles;
  // More of R takes longer to read than a launch for each step takes, on an H200.
  constexpr std::int64_t kMaxWeightBytes = 128 << 10;
  const std::int64_t weight_bytes = std::int64_t{block_tiles} * kTileRows * layer.weight_planes * row_bytes;
  if (weight_bytes > kMaxWeightBytes) return {};
  for (plan.slices = std::clamp(kPersistentWarps / block_tiles, 1, std::min(steps, kMaxSlices)); plan.slices >= 1;
       --plan.slices) {
    plan.shared_bytes = kBarrierBytes + weight_bytes +
                        std::int64_t{2} * layer.state_planes * kClusterRows * plan.column_bytes +
                        partial_count(block_tiles, plan.slices, kClusterRows) * std::int64_t{8};
    if (plan.shared_bytes <= most_shared_bytes(device)) return plan;
  }
  return {};
}

const char* persistent_unsupported_reason(const RecurrentProblem& problem, const DeviceLayer& layer) {
  // Clusters that wait for others are slower than all multiprocessors at one step after the other.
  constexpr std::int64_t kMaxRows = 128;
  if (problem.steps < 2) return "it has less than two steps";
  if (problem.batch > kMaxRows) return "it has more than 128 rows";
  const RecurrentCudaOptions options;
  return plan_persistent(layer, problem.device.index, options.largest_cluster).cluster > 0
             ? nullptr
             : "R takes more than 128 KB of shared memory per thread block";
}

}  // namespace qcore
