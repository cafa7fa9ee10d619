#include <algorithm>

#include "formats/row_stride.h"
#include "gemm/cuda/sm90_int8_wgmma/arguments.cuh"
#include "gemm/cuda/weight_sums.cuh"
#include "linear/cuda/tile_limits.h"
#include "linear/grouped/cuda/kernels.h"
#include "linear/grouped/cuda/operands.cuh"
#include "linear/grouped/cuda/place_rows.cuh"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {

using sm90_int8_wgmma::Tuning;

const char* grouped_sm90_int8_wgmma_unsupported_reason(const GroupedLinearProblem& problem) {
  if (const char* reason = sm90_int8_wgmma_unsupported_reason(problem)) return reason;
  if (problem.outputs() % PackedLayout::kPanelRows) return "it takes N that are multiples of 16";
  return problem.experts > PlacedRows::kMaxExperts ? "it takes up to 1023 experts" : nullptr;
}

void run_grouped_sm90_int8_wgmma(const GroupedLinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.outputs() == 0) return;
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  DeviceWeight w = device_weight(*problem.weight);
  const ExpertCounts experts = expert_counts(problem);
  const bool activation_offsets = problem.compute == ComputeMode::int8_asym, one_block = w.blocks == 1;
  const std::int64_t padded = sm90_int8_wgmma::padded_block(w),
                     stages = ceil_div(w.blocks * padded, TiledRows::kStageK);
  const int arrays = activation_offsets || w.offsets ? 3 : 1;
  const std::int64_t rows = rows_at_once(bounds, stages * TiledRows::kStageK, problem.m);
  const double mean = static_cast<double>(rows) / static_cast<double>(problem.experts);
  const int heights = sm90_int8_wgmma::tile_heights(one_block, padded);
  const int shift = bounds.tile < 0 ? Tuning::fastest_expert_shift(mean, one_block, heights) : bounds.tile;
  const std::int64_t most_tiles = experts.most_tiles(rows, std::int64_t{1} << shift), padded_rows = most_tiles << shift;

  ScratchPlan plan;
  const auto codes = plan.add<std::int8_t>(padded_rows * stages * TiledRows::kStageK);
  const auto parameters = plan.add<float>(padded_rows * w.blocks * arrays);
  const auto weight_sums = plan.add<float>(activation_offsets ? weight_sum_count(w) : 0);
  const auto tiles = plan.add<ExpertTile>(most_tiles);
  const auto places = plan.add<std::int32_t>(rows), count = plan.add<std::int32_t>(1);
  CudaScratch scratch(plan, problem.device.index, stream);
  if (activation_offsets) add_weight_sums(w, scratch[weight_sums], stream);

  sm90_int8_wgmma::RowArguments arguments{};
  arguments.w = w;
  arguments.w.n = problem.outputs();
  arguments.out = expert_output(problem);
  arguments.experts = {scratch[tiles], scratch[count], problem.outputs() / PackedLayout::kPanelRows,
                       experts.bias_stride};
  arguments.one_block = one_block;
  arguments.pairs = problem.y.leading == 1 && columns_lie_together(problem.y, 2);
  arguments.cluster = {1, 1};
  for (std::int64_t row = 0; row < problem.m; row += rows) {
    QuantizedRows<std::int8_t> x{scratch[codes], nullptr, nullptr, nullptr, std::min(rows, problem.m - row),
                                 w.blocks,       padded};
    const auto order = w.bits == 4 ? TiledRows::Order::nibbles : TiledRows::Order::bytes;
    x.tiled = {shift, arrays, order, stages, scratch[parameters], scratch[places]};
    place_rows({experts, arguments.out, row, x.rows, 1 << shift, scratch[places], scratch[tiles], scratch[count]},
               stream);
    quantize_activations(problem.x, problem.scales, row, w.k, w.block_size, problem.compute, x, stream);
    arguments.x = x;
    arguments.first_row = row;
    sm90_int8_wgmma::run_rows(arguments, stream);
  }
}

}  // namespace qcore
