#include <algorithm>

#include "formats/row_stride.h"
#include "gemm/cuda/row_sums.cuh"
#include "gemm/cuda/sm90_float_wgmma/arguments.cuh"
#include "gemm/cuda/sm90_float_wgmma/plan.h"
#include "gemm/cuda/split_rows.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/tile_limits.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

using sm90_float_wgmma::Tuning;

constexpr std::int64_t kUnit = 8;  // 16-bit values in 16 bytes

// Whether the copy engine can take x from where it is: rows that do not overlap, at multiples of 16 bytes.
bool in_place(const LinearProblem& problem, std::int64_t stride) {
  return stride >= problem.weight->layout.k && stride % kUnit == 0 && columns_lie_together(problem.x, kUnit);
}

// Zero points of 4 bits become part of the decoded codes.
bool needs_row_sums(const PackedWeight& weight) {
  return weight.has_offsets() && !(weight.layout.bits == 4 && weight.has_zero_points);
}

// The most rows that sm80_float_mma multiplies faster: fewer where there are so many columns that its tiles do not all
// run at once. Measured on an H200, see docs/notes/linear-cuda.md.
std::int64_t most_few_rows(const LinearProblem& problem) {
  const bool many_columns = ceil_div(problem.weight->layout.n, 64) > multiprocessors(problem.device.index);
  return many_columns && !needs_row_sums(*problem.weight) ? 8 : Tuning::kFewRows;
}

}  // namespace

const char* sm90_float_wgmma_unsupported_reason(const LinearProblem& problem) {
  if (const char* reason = tile_unsupported_reason(problem, false, 90)) return reason;
  if (problem.x.dtype == DType::f32) return "it takes fp16 and bf16 x";
  const PackedLayout& layout = problem.weight->layout;
  if (layout.k == 0) return "it takes K from 1 on";
  if (layout.blocks() > 1 && layout.block_size % (sm90_float_wgmma::kStageK / 2))
    return "it takes block sizes that are multiples of 32";
  if (problem.m <= most_few_rows(problem))
    return "it takes M from 17 on, from 9 on of a weight with many columns whose offsets, if any, are zero points";
  return nullptr;
}

void run_sm90_float_wgmma(const LinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  const DeviceWeight w = device_weight(*problem.weight);
  const bool has_sums = needs_row_sums(*problem.weight);
  const std::int64_t x_stride = row_stride(problem.x);
  const bool gather = !in_place(problem, x_stride);
  const std::int64_t row_length = round_up(w.k, kUnit), unit = sm90_float_wgmma::sum_unit(w);
  const std::int64_t multiprocessors =
      bounds.multiprocessors ? bounds.multiprocessors : qcore::multiprocessors(problem.device.index);
  std::int64_t rows = bounds.rows;
  if (gather) rows = std::min(rows, bounds.codes / (2 * row_length));
  rows = std::min(std::max(rows, bounds.fewest_rows), problem.m);
  const auto plan = [&](std::int64_t count) {
    return sm90_float_wgmma::plan(count, 2 * count * w.k, w, multiprocessors, bounds.tile);
  };
  const sm90_float_wgmma::Plan plans[] = {plan(rows), plan((problem.m - 1) % rows + 1)};
  const std::int64_t sum_stride = round_up(rows, Tuning::kMaxParts * sm90_float_wgmma::kPartRows);

  ScratchPlan scratch_plan;
  const auto values = scratch_plan.add<std::uint16_t>(gather ? rows * row_length : 0);
  const auto sums = scratch_plan.add<float>(has_sums ? round_up(w.k, sm90_float_wgmma::kStepK) / unit * sum_stride : 0);
  const SpreadScratch spread = sm90_float_wgmma::spread_scratch(scratch_plan, plans[0], plans[1]);
  CudaScratch scratch(scratch_plan, problem.device.index, stream);

  sm90_float_wgmma::Arguments arguments{};
  arguments.w = w;
  arguments.has_zero_points = w.offsets && !has_sums;
  arguments.new_weight = problem.follows_expansion && !has_sums;
  arguments.dtype = problem.x.dtype;
  arguments.out = device_output(problem);
  arguments.pairs = problem.y.leading == 1 && columns_lie_together(problem.y, 2);
  arguments.sum_stride = sum_stride;
  for (std::int64_t row = 0; row < problem.m; row += rows) {
    const std::int64_t count = std::min(rows, problem.m - row);
    if (gather) split_rows(problem.x, row, w.k, {scratch[values], count, row_length}, stream);
    arguments.first_row = row;
    arguments.rows = count;
    arguments.row_stride = gather ? row_length : x_stride;
    arguments.values = gather ? scratch[values] : static_cast<const std::uint16_t*>(problem.x.data) + row * x_stride;
    if (has_sums) {
      add_row_sums({arguments.values, arguments.row_stride, count, w.k, arguments.dtype, static_cast<int>(unit),
                    sum_stride, scratch[sums]},
                   stream);
      arguments.row_sums = scratch[sums];
    }
    const sm90_float_wgmma::Plan& chosen = plans[count == rows ? 0 : 1];
    arguments.parts = chosen.parts;
    arguments.spread = chosen.spread;
    if (chosen.spread) arguments.spread_totals = spread.totals(scratch);
    sm90_float_wgmma::set_maps(arguments);
    problem.x.dtype == DType::f16 ? sm90_float_wgmma::run_f16(arguments, stream)
                                  : sm90_float_wgmma::run_bf16(arguments, stream);
  }
}

}  // namespace qcore
