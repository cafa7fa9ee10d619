#include <algorithm>

#include "formats/row_stride.h"
#include "gemm/cuda/sm90_int8_wgmma/arguments.cuh"
#include "gemm/cuda/spread_plan.h"
#include "gemm/cuda/weight_sums.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/tile_limits.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {

using sm90_int8_wgmma::Tuning;

namespace {

struct Plan {
  int shift;   // a tile has 1 << shift rows
  int spread;  // thread blocks, or 0
};

// The plan that is expected to take the least time, as measured on one H100 on 2026-11-26. Totals are handed on in the
// order of k, so steps are spread only if that is from one thread block to one other. `spread` 1 and 0 ask for spread
// steps, where that is so, or for whole tiles.
Plan plan(std::int64_t rows, const DeviceWeight& w, std::int64_t padded, std::int64_t multiprocessors, int spread) {
  if (w.blocks == 1) return {Tuning::fastest_one_block_shift(rows, w.n, multiprocessors), 0};
  // 32 to 256 rows; shorter blocks take longer, by as much with every height.
  constexpr TileTimes kTimes[] = {{35, 190, 400}, {47, 190, 700}, {80, 200, 800}, {136, 220, 1150}};
  const std::int64_t columns = ceil_div(w.n, Tuning::kColumns), stages = ceil_div(w.k, TiledRows::kStageK);
  Plan best{0, 0};
  std::int64_t least = 0;
  for (int i = 0; i < sm90_int8_wgmma::tile_heights(false, padded); ++i) {
    const int shift = Tuning::kSmallestShift + i;
    const std::int64_t tiles = columns * (((rows - 1) >> shift) + 1);
    const auto consider = [&](int blocks, std::int64_t time) {
      if (best.shift == 0 || time < least) best = {shift, blocks}, least = time;
    };
    const bool can = tiles >= multiprocessors && can_spread(stages, multiprocessors);
    if (spread <= 0 || !can) consider(0, kTimes[i].whole(tiles, stages, multiprocessors));
    if (can && (spread > 0 || (spread < 0 && may_spread(tiles, multiprocessors, rows * w.k))))
      consider(static_cast<int>(multiprocessors), kTimes[i].spread(tiles, stages, multiprocessors));
  }
  return best;
}

}  // namespace

const char* sm90_int8_wgmma_unsupported_reason(const LinearProblem& problem) {
  if (const char* reason = tile_unsupported_reason(problem, true, 90)) return reason;
  const PackedLayout& layout = problem.weight->layout;
  if (layout.k == 0) return "it takes K from 1 on";
  if (layout.blocks() > 1 && layout.block_size != 32 && layout.block_size != 64 &&
      layout.block_size % TiledRows::kStageK)
    return "it takes block sizes 32, 64 and multiples of 128";
  return nullptr;
}

void run_sm90_int8_wgmma(const LinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  DeviceWeight w = device_weight(*problem.weight);
  const bool activation_offsets = problem.compute == ComputeMode::int8_asym;
  const std::int64_t padded = sm90_int8_wgmma::padded_block(w),
                     stages = ceil_div(w.blocks * padded, TiledRows::kStageK);
  const int arrays = activation_offsets || w.offsets ? 3 : 1;
  std::int64_t rows = rows_at_once(bounds, stages * TiledRows::kStageK, problem.m);
  if (rows < problem.m) rows = std::max<std::int64_t>(rows >> Tuning::kMaxShift << Tuning::kMaxShift, 1);
  const bool one_block = w.blocks == 1;
  const std::int64_t multiprocessors =
      bounds.multiprocessors ? bounds.multiprocessors : qcore::multiprocessors(problem.device.index);
  const Plan chosen = plan(rows, w, padded, multiprocessors, bounds.tile);
  const int shift = chosen.shift, tile = 1 << shift;
  const std::int64_t padded_rows = round_up(rows, tile);

  ScratchPlan scratch_plan;
  const auto codes = scratch_plan.add<std::int8_t>(padded_rows * stages * TiledRows::kStageK);
  const auto parameters = scratch_plan.add<float>(padded_rows * w.blocks * arrays);
  const auto weight_sums = scratch_plan.add<float>(activation_offsets ? weight_sum_count(w) : 0);
  const SpreadScratch spread(scratch_plan, chosen.spread, tile * Tuning::kColumns,
                             Tuning::kColumns / static_cast<int>(PackedLayout::kPanelRows));
  CudaScratch scratch(scratch_plan, problem.device.index, stream);
  if (activation_offsets) add_weight_sums(w, scratch[weight_sums], stream);
  const bool pairs = problem.y.leading == 1 && columns_lie_together(problem.y, 2);
  for (std::int64_t row = 0; row < problem.m; row += rows) {
    QuantizedRows<std::int8_t> x{scratch[codes], nullptr, nullptr, nullptr, std::min(rows, problem.m - row),
                                 w.blocks,       padded};
    const auto order = w.bits == 4 ? TiledRows::Order::nibbles : TiledRows::Order::bytes;
    x.tiled = {shift, arrays, order, stages, scratch[parameters]};
    // The product asks for the weight and its sums before it waits: what writes these has to have ended by then.
    x.starts_early = !activation_offsets && !problem.follows_expansion;
    quantize_activations(problem.x, problem.scales, row, w.k, w.block_size, problem.compute, x, stream);
    const std::int64_t columns = ceil_div(w.n, Tuning::kColumns), tile_rows = ceil_div(x.rows, tile);
    sm90_int8_wgmma::RowArguments arguments{};
    arguments.x = x;
    arguments.first_row = row;
    arguments.w = w;
    arguments.out = device_output(problem);
    arguments.one_block = one_block;
    arguments.pairs = pairs;
    if (chosen.spread > 0 && columns * tile_rows >= chosen.spread) {
      arguments.spread = chosen.spread;
      arguments.spread_totals = spread.totals(scratch);
    }
    arguments.cluster = one_block
                            ? sm90_int8_wgmma::one_block_cluster(w.bits, shift, columns, tile_rows, multiprocessors)
                            : sm90_int8_wgmma::Cluster{1, 1};
    sm90_int8_wgmma::run_rows(arguments, stream);
  }
}

}  // namespace qcore
