#include <algorithm>

#include "formats/row_stride.h"
#include "gemm/cuda/sm80_int8_mma/launch.cuh"
#include "gemm/cuda/sm80_int8_mma16/arguments.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/sm80_int8_mma/passes.cuh"
#include "linear/cuda/tile_limits.h"

namespace qcore {
namespace {

bool has_blocks_of_16(const PackedLayout& layout) {
  return layout.blocks() > 1 && layout.block_size == sm80_int8_mma16::kBlock;
}

void run_blocks_of_16(const LinearProblem& problem, const ScratchBounds& bounds) {
  using sm80_int8_mma16::Tuning;
  const int device = problem.device.index;
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  sm80_int8_mma16::Arguments a{};
  a.w = device_weight(*problem.weight);
  const bool activation_offsets = problem.compute == ComputeMode::int8_asym;
  const int arrays = activation_offsets || a.w.offsets ? 3 : 1;
  const std::int64_t row_codes = round_up(a.w.blocks, Tuning::kStageBlocks) * sm80_int8_mma16::kBlock;
  const std::int64_t rows = rows_at_once(bounds, row_codes, problem.m);
  const auto terms = activation_offsets ? sm80_int8_mma16::Terms::all : a.terms();
  a.size =
      Tuning::choose(rows, a.w.n, terms, bounds.multiprocessors ? bounds.multiprocessors : multiprocessors(device));
  if (bounds.tile >= 0 && terms != sm80_int8_mma16::Terms::all)
    a.size = static_cast<sm80_int8_mma16::Size>(bounds.tile);
  const int tile = Tuning::shape(a.size).rows();
  const std::int64_t tile_rows = round_up(rows, tile);
  const std::int64_t behind = std::int64_t{tile} * arrays * Tuning::kStageBlocks;

  ScratchPlan plan;
  const auto codes = plan.add<std::int8_t>(tile_rows * row_codes);
  const auto parameters = plan.add<float>(tile_rows * a.w.blocks * arrays + behind);
  const auto weight_sums = plan.add<float>(activation_offsets ? weight_sum_count(a.w) : 0);
  CudaScratch scratch(plan, device, stream);
  if (activation_offsets) add_weight_sums(a.w, scratch[weight_sums], stream);
  a.out = device_output(problem);
  a.y_row_stride = row_stride(problem.y);
  a.overlap = compute_capability(device) >= 90;
  for (std::int64_t row = 0; row < problem.m; row += rows) {
    QuantizedRows<std::int8_t> x{
        scratch[codes],         nullptr, nullptr, nullptr, std::min(rows, problem.m - row), a.w.blocks,
        sm80_int8_mma16::kBlock};
    x.tiled.order = TiledRows::Order::chunks;
    while (x.tiled.rows() < tile) ++x.tiled.shift;
    x.tiled.arrays = arrays;
    x.tiled.stages = row_codes / TiledRows::kChunkK;
    x.tiled.parameters = scratch[parameters];
    quantize_activations(problem.x, problem.scales, row, a.w.k, a.w.block_size, problem.compute, x, stream);
    a.x = x;
    a.first_row = row;
    sm80_int8_mma16::run(a, stream);
  }
}

}  // namespace

const char* sm80_int8_mma_unsupported_reason(const LinearProblem& problem) {
  if (const char* reason = tile_unsupported_reason(problem, true, 80)) return reason;
  const PackedLayout& layout = problem.weight->layout;
  if (layout.blocks() > 1 && layout.block_size % sm80_int8_mma::kChunk && !has_blocks_of_16(layout))
    return "it takes block sizes of 16 and multiples of 32";
  return nullptr;
}

void run_sm80_int8_mma(const LinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  if (has_blocks_of_16(problem.weight->layout)) return run_blocks_of_16(problem, bounds);
  const std::int64_t enough_tiles = bounds.enough_tiles ? bounds.enough_tiles : sm80_int8_mma::Tuning::kEnoughTiles;
  sm80_int8_mma::for_each_pass(
      problem, bounds, [&](const QuantizedRows<std::int8_t>& x, std::int64_t row, const DeviceWeight& w) {
        sm80_int8_mma::run<sm80_int8_mma::GemmRows>({x, row, w, device_output(problem), enough_tiles,
                                                     row_stride(problem.y), columns_lie_together(problem.y, 4)},
                                                    static_cast<cudaStream_t>(problem.stream));
      });
}

}  // namespace qcore
