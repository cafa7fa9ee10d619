#include <algorithm>

#include "formats/element.h"
#include "gemm/cuda/encoded/expand_weight.cuh"
#include "linear/cuda/kernels.h"
#include "linear/grouped/cuda/kernels.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr std::int64_t kRows = PackedLayout::kPanelRows;
// Bands are whole tiles of every kernel.
constexpr std::int64_t kBandPanels = 256 / kRows;

}  // namespace

void run_expanded(const LinearProblem& problem, const ScratchBounds& bounds, LinearKernel* run, bool extended) {
  const PackedWeight& weight = *problem.weight;
  if (!weight.encoded || problem.m == 0 || weight.layout.n == 0) return run(problem, bounds);
  DeviceGuard guard(problem.device.index);
  const std::int64_t fitting = bounds.expanded_bytes / std::max<std::int64_t>(expanded_bytes(weight, kBandPanels), 1);
  const std::int64_t panels = std::max<std::int64_t>(fitting, 1) * kBandPanels;
  for (std::int64_t first = 0; first < weight.layout.panels(); first += panels) {
    const ExpandedWeight band(weight, first, std::min(panels, weight.layout.panels() - first),
                              static_cast<cudaStream_t>(problem.stream), {extended && weight.has_offsets(), extended});
    LinearProblem part = problem;
    part.weight = &band.plain();
    part.counts_from_zero = band.counts_from_zero();
    part.follows_expansion = compute_capability(problem.device.index) >= 90;
    part.y.data =
        static_cast<const char*>(problem.y.data) + first * kRows * problem.y.column_stride * item_size(problem.y.dtype);
    if (problem.bias.rank) {
      part.bias.data = static_cast<char*>(problem.bias.data) +
                       first * kRows * problem.bias.strides[0] * item_size(problem.bias.dtype);
      part.bias.shape[0] = band.plain().layout.n;
    }
    run(part, bounds);
  }
}

void run_expanded(const GroupedLinearProblem& problem, const ScratchBounds& bounds, GroupedLinearKernel* run) {
  const PackedWeight& weight = *problem.weight;
  if (!weight.encoded || problem.m == 0 || weight.layout.n == 0) return run(problem, bounds);
  DeviceGuard guard(problem.device.index);
  const ExpandedWeight whole(weight, 0, weight.layout.panels(), static_cast<cudaStream_t>(problem.stream), {});
  GroupedLinearProblem part = problem;
  part.weight = &whole.plain();
  run(part, bounds);
}

}  // namespace qcore
