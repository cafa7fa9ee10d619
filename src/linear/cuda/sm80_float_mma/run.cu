#include <algorithm>

#include "formats/row_stride.h"
#include "gemm/cuda/sm80_float_mma/arguments.cuh"
#include "gemm/cuda/split_rows.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/sm80_float_mma/few_rows.cuh"
#include "linear/cuda/tile_limits.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr std::int64_t kUnit = 8;  // 16-bit values in 16 bytes

// Whether 16-byte copies can take x from where it is.
bool in_place(const LinearProblem& problem, std::int64_t stride) {
  return problem.x.dtype != DType::f32 && problem.weight->layout.k % kUnit == 0 && stride != 0 &&
         columns_lie_together(problem.x, kUnit);
}

}  // namespace

const char* sm80_float_mma_unsupported_reason(const LinearProblem& problem) {
  if (const char* reason = tile_unsupported_reason(problem, false, 80)) return reason;
  const PackedLayout& layout = problem.weight->layout;
  if (layout.blocks() > 1 && layout.block_size % sm80_float_mma::kChunk)
    return "it takes block sizes that are multiples of 32";
  return nullptr;
}

void run_sm80_float_mma(const LinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  const DeviceWeight w = device_weight(*problem.weight);
  const std::int64_t processors =
      bounds.multiprocessors ? bounds.multiprocessors : multiprocessors(problem.device.index);
  if (sm80_float_mma::FewRows few{}; sm80_float_mma::few_rows(problem, w, processors, few))
    return sm80_float_mma::run_few_rows(few, compute_capability(problem.device.index) >= 90, stream);
  const std::int64_t x_stride = row_stride(problem.x);
  const bool gather = !in_place(problem, x_stride);
  const std::int64_t row_length = round_up(w.k, kUnit), planes = split_planes(problem.x.dtype);
  std::int64_t rows = bounds.rows;
  if (gather) rows = std::min(rows, bounds.codes / std::max<std::int64_t>(2 * planes * row_length, 1));
  rows = std::min(std::max(rows, bounds.fewest_rows), problem.m);

  ScratchPlan plan;
  const auto values = plan.add<std::uint16_t>(gather ? planes * rows * row_length : 0);
  CudaScratch scratch(plan, problem.device.index, stream);

  sm80_float_mma::Arguments arguments{};
  arguments.w = w;
  arguments.out = device_output(problem);
  arguments.y_row_stride = row_stride(problem.y);
  arguments.store_fours = columns_lie_together(problem.y, 4);
  arguments.enough_tiles = bounds.enough_tiles ? bounds.enough_tiles : sm80_float_mma::Tuning::kEnoughTiles;
  for (std::int64_t row = 0; row < problem.m; row += rows) {
    const std::int64_t count = std::min(rows, problem.m - row);
    const SplitRows split{scratch[values], count, row_length};
    if (gather) split_rows(problem.x, row, w.k, split, stream);
    const auto* given = static_cast<const std::uint16_t*>(problem.x.data) + row * x_stride;
    arguments.first_row = row;
    arguments.x = {reinterpret_cast<const uint4*>(gather ? split.values : given),
                   (gather ? row_length : x_stride) / kUnit,
                   count * row_length / kUnit,
                   row_length / kUnit,
                   count,
                   w.k,
                   problem.x.dtype};
    sm80_float_mma::run(arguments, stream);
  }
}

}  // namespace qcore
