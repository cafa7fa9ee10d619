#include <algorithm>

#include "formats/row_stride.h"
#include "gemm/cuda/sm90_int8_mma/gemm.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/scratch_bounds.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr std::int64_t kMaxColumns = std::int64_t{1} << 31;
constexpr std::int64_t kMaxDepth = 1 << 28;  // units of k are counted in int

using sm90_int8_mma::Tuning;

void run_passes(const LinearProblem& problem, const DeviceWeight& w, const ScratchBounds& bounds,
                const sm90_int8_mma::Size* size, cudaStream_t stream) {
  const std::int64_t row_codes = std::max<std::int64_t>(w.blocks * w.block_size, 1);
  const std::int64_t rows =
      std::min(std::max(std::min(bounds.codes / row_codes, bounds.rows), bounds.fewest_rows), problem.m);
  sm90_int8_mma::Arguments arguments{};
  arguments.size = size ? *size : Tuning::choose(rows, w.n, w.block_size, multiprocessors(problem.device.index));
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

}  // namespace

const char* sm90_int8_mma_unsupported_reason(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.compute != ComputeMode::int8) return "it computes int8 only";
  const PackedLayout& layout = problem.weight->layout;
  if (layout.taps != 1) return "it takes weights [N, K] only";
  if (problem.weight->offsets) return "it takes symmetric weights";
  if (layout.block_size != 32 && layout.block_size != 64 && layout.block_size != 128)
    return "it takes block sizes 32, 64 and 128";
  if (problem.m < Tuning::kMinRows || problem.m > Tuning::kMaxRows) return "it takes M from 5 to 128";
  if (layout.k > kMaxDepth) return "it takes K up to 2^28";
  if (layout.n > kMaxColumns) return "it takes N up to 2^31";
  if (compute_capability(problem.device.index) != 90) return "it needs compute capability 9.0";
  return nullptr;
}

void run_sm90_int8_mma(const LinearProblem& problem, const ScratchBounds& bounds, const sm90_int8_mma::Size* size) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  run_passes(problem, device_weight(*problem.weight), bounds, size, static_cast<cudaStream_t>(problem.stream));
}

void run_sm90_int8_mma(const LinearProblem& problem) { run_sm90_int8_mma(problem, ScratchBounds{}, nullptr); }

}  // namespace qcore
