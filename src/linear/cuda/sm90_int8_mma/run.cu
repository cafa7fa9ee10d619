#include <algorithm>

#include "formats/row_stride.h"
#include "gemm/cuda/sm90_int8_mma/gemm.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/sm75_gemv/gemv_int8.cuh"
#include "linear/cuda/tile_limits.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

using sm90_int8_mma::Tuning;

bool has_short_blocks(const PackedLayout& layout) {
  return layout.block_size == 32 || layout.block_size == 64 || layout.block_size == 128;
}

// The fewest rows of one block each for which this kernel is faster than sm75_gemv, whose thread blocks quantize all of
// x each: long rows make that slow, and so do columns for one more round. Measured on an H200, see
// docs/notes/linear-cuda.md.
std::int64_t fewest_rows_of_one_block(const PackedLayout& layout, int multiprocessors) {
  constexpr std::int64_t kLargeWeight = 1 << 25, kLongRow = 4096;
  const bool few_tiles = Tuning::has_few_tiles(layout.n, multiprocessors);
  if (!few_tiles && Tuning::has_few_tiles(layout.n, 2 * multiprocessors)) return 1;
  if (few_tiles && layout.n * layout.k >= kLargeWeight) return layout.bits == 8 ? 2 : 3;
  const bool many_tiles = !Tuning::has_few_tiles(layout.n, 4 * multiprocessors);
  return layout.k < kLongRow || (layout.k == kLongRow && many_tiles) ? 9 : Tuning::kMinRows;
}

// The most rows in blocks of 32, 64 or 128 for which sm75_gemv is faster, measured on an H200, see
// docs/notes/linear-cuda.md: its thread blocks quantize up to 4096 values of a row at once, and take several groups of
// columns in turn where those of sm90_int8_mma, two on a multiprocessor, do not all run at once. With short blocks of 4
// bits it is also faster where half of the multiprocessors have nothing to do.
std::int64_t most_rows_of_gemv(const PackedLayout& layout, int multiprocessors) {
  constexpr std::int64_t kShortRow = 4096;
  const bool short_blocks = layout.block_size < 128, narrow = Tuning::has_few_tiles(2 * layout.n, multiprocessors);
  const bool one_each = Tuning::has_few_tiles(layout.n, multiprocessors);
  const bool two_each = !one_each && Tuning::has_few_tiles(layout.n, 2 * multiprocessors);
  if (layout.k > kShortRow) return one_each ? 2 : two_each ? 1 : 3;
  if (layout.bits == 8 && short_blocks) return two_each ? 2 : 3;
  if (layout.bits == 8 && !narrow && (one_each || two_each)) return 2;
  if ((one_each || two_each) && !(short_blocks && narrow)) return 3;
  if (short_blocks) return 6;
  return Tuning::has_few_tiles(layout.n, 4 * multiprocessors) ? 4 : RowQuantizer::kMaxRows;
}

// Only the way of sm75_gemv that is one launch is faster.
bool leaves_to_gemv(const LinearProblem& problem, int multiprocessors) {
  if (problem.weight->encoded || problem.m > most_rows_of_gemv(problem.weight->layout, multiprocessors)) return false;
  gemv::Int8Arguments arguments{};
  return gemv::int8_arguments(problem, device_weight(*problem.weight), false, multiprocessors, arguments);
}

}  // namespace

const char* sm90_int8_mma_unsupported_reason(const LinearProblem& problem) {
  if (problem.device.type == DeviceType::cuda && problem.compute != ComputeMode::int8) return "it computes int8 only";
  if (const char* reason = tile_unsupported_reason(problem, true, 90)) return reason;
  const PackedLayout& layout = problem.weight->layout;
  if (!has_short_blocks(layout) && layout.blocks() != 1)
    return "it takes block sizes 32, 64 and 128, and one block per row";
  if (problem.weight->has_offsets() && !has_short_blocks(layout))
    return "it takes weights with offsets in blocks of 32, 64 and 128 only";
  if (problem.m > Tuning::kMaxRows) return "it takes M up to 128";
  const int multiprocessors = qcore::multiprocessors(problem.device.index);
  const bool offsets = problem.weight->has_offsets(), plain = !problem.weight->encoded;
  const std::int64_t block_size = has_short_blocks(layout) ? layout.block_size : 0;
  const bool at_once = Tuning::runs_at_once(problem.m, layout.n, block_size, layout.bits, offsets, multiprocessors);
  if (block_size == 0) {
    if (problem.m < fewest_rows_of_one_block(layout, multiprocessors))
      return "sm75_gemv takes so few rows with one block per row";
    const int few = Tuning::has_few_tiles(layout.n, 2 * multiprocessors) ? 16 : 8;
    return problem.m > few && !at_once ? "sm90_int8_wgmma takes so many rows with one block per row" : nullptr;
  }
  if (plain ? !offsets && problem.m < Tuning::kMinPlainRows : problem.m < Tuning::kMinRows)
    return "it takes M from 2 on, from 5 on of an encoded weight, from 1 on of a plain one with offsets";
  if (leaves_to_gemv(problem, multiprocessors)) return "sm75_gemv takes so few rows of so many values";
  // Encoded weights would be expanded for the other kernel.
  if (plain && offsets && block_size == 128 && problem.m > 64 && !at_once)
    return "sm90_int8_wgmma takes so many rows of a plain weight with offsets in blocks of 128";
  return Tuning::is_faster(problem.m, layout.n, layout.k, block_size, layout.bits, offsets, multiprocessors)
             ? nullptr
             : "sm90_int8_wgmma takes so many rows of a weight with so many columns";
}

void run_sm90_int8_mma(const LinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  const DeviceWeight w = device_weight(*problem.weight);
  sm90_int8_mma::Arguments arguments{};
  arguments.one_block = !has_short_blocks(problem.weight->layout);
  constexpr std::int64_t kUnit = sm90_int8_mma::kUnitChunks * sm90_int8_mma::kChunk;
  const std::int64_t padded_block = arguments.one_block ? round_up(w.k, kUnit) : w.block_size;
  const std::int64_t row_codes = w.blocks * padded_block, rows = rows_at_once(bounds, row_codes, problem.m);
  arguments.size = bounds.tile < 0 ? Tuning::choose(rows, w, arguments.one_block, multiprocessors(problem.device.index))
                                   : static_cast<sm90_int8_mma::Size>(bounds.tile);
  const int tile = Tuning::shape(arguments.size).rows(), arrays = w.offsets ? 2 : 1;
  const std::int64_t tile_rows = round_up(rows, tile);
  ScratchPlan plan;
  const auto codes = plan.add<std::int8_t>(tile_rows * row_codes);
  const auto scales = plan.add<float>(tile_rows * w.blocks * arrays);
  CudaScratch scratch(plan, problem.device.index, stream);

  arguments.w = w;
  arguments.new_weight = problem.follows_expansion;
  arguments.nibbles = sm90_int8_mma::NibbleForm::around(problem.counts_from_zero ? 0 : 8);
  if (arguments.one_block) arguments.w.blocks = padded_block / kUnit;
  arguments.out = device_output(problem);
  arguments.y_row_stride = row_stride(problem.y);
  arguments.store_fours = columns_lie_together(problem.y, 4);
  for (std::int64_t row = 0; row < problem.m; row += rows) {
    QuantizedRows<std::int8_t> x{scratch[codes], nullptr,     nullptr, nullptr, std::min(rows, problem.m - row),
                                 w.blocks,       padded_block};
    x.tiled.order = TiledRows::Order::chunks;
    while (x.tiled.rows() < tile) ++x.tiled.shift;
    x.tiled.arrays = arrays;
    // Behind the expansion of a weight it overlaps with that, otherwise it starts while the product in front of it
    // runs.
    x.overlap = problem.follows_expansion && row == 0;
    x.starts_early = !problem.follows_expansion;
    x.small_thread_blocks = Tuning::shape(arguments.size).resident == 1;
    x.tiled.stages = row_codes / TiledRows::kChunkK;
    x.tiled.parameters = scratch[scales];
    quantize_activations(problem.x, problem.scales, row, w.k, w.block_size, problem.compute, x, stream);
    arguments.x = x;
    arguments.first_row = row;
    sm90_int8_mma::run<sm90_int8_mma::GemmRows>(arguments, stream);
  }
}

}  // namespace qcore
