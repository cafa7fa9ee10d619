#include <algorithm>

#include "formats/row_stride.h"
#include "gemm/cuda/sm90_int8_mma/gemm.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/tile_limits.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

using sm90_int8_mma::Tuning;

}  // namespace

const char* sm90_int8_mma_unsupported_reason(const LinearProblem& problem) {
  if (problem.device.type == DeviceType::cuda && problem.compute != ComputeMode::int8) return "it computes int8 only";
  if (const char* reason = tile_unsupported_reason(problem, true, 90)) return reason;
  const PackedLayout& layout = problem.weight->layout;
  if (problem.weight->offsets) return "it takes symmetric weights";
  if (layout.block_size != 32 && layout.block_size != 64 && layout.block_size != 128)
    return "it takes block sizes 32, 64 and 128";
  if (problem.m < Tuning::kMinRows || problem.m > Tuning::kMaxRows) return "it takes M from 5 to 128";
  return nullptr;
}

void run_sm90_int8_mma(const LinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  const DeviceWeight w = device_weight(*problem.weight);
  const std::int64_t rows = rows_at_once(bounds, w.blocks * w.block_size, problem.m);
  sm90_int8_mma::Arguments arguments{};
  arguments.size = bounds.tile < 0 ? Tuning::choose(rows, w.n, w.block_size, multiprocessors(problem.device.index))
                                   : static_cast<sm90_int8_mma::Size>(bounds.tile);
  const int tile = Tuning::shape(arguments.size).rows();
  const std::int64_t tile_rows = round_up(rows, tile);
  ScratchPlan plan;
  const auto codes = plan.add<std::int8_t>(tile_rows * w.blocks * w.block_size);
  const auto scales = plan.add<float>(tile_rows * w.blocks);
  CudaScratch scratch(plan, problem.device.index, stream);

  arguments.w = w;
  arguments.out = device_output(problem);
  arguments.y_row_stride = row_stride(problem.y);
  arguments.store_fours = columns_lie_together(problem.y, 4);
  for (std::int64_t row = 0; row < problem.m; row += rows) {
    QuantizedRows<std::int8_t> x{scratch[codes], nullptr,     nullptr, nullptr, std::min(rows, problem.m - row),
                                 w.blocks,       w.block_size};
    x.tiled.order = TiledRows::Order::chunks;
    while (x.tiled.rows() < tile) ++x.tiled.shift;
    x.tiled.stages = w.blocks * w.block_size / TiledRows::kChunkK;
    x.tiled.parameters = scratch[scales];
    quantize_activations(problem.x, row, w.k, w.block_size, problem.compute, x, stream);
    arguments.x = x;
    arguments.first_row = row;
    sm90_int8_mma::run<sm90_int8_mma::GemmRows>(arguments, stream);
  }
}

}  // namespace qcore
