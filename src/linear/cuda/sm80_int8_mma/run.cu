#include <algorithm>

#include "gemm/cuda/sm80_int8_mma/launch.cuh"
#include "gemm/cuda/weight_sums.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/tile_limits.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {}  // namespace

const char* sm80_int8_mma_unsupported_reason(const LinearProblem& problem) {
  if (const char* reason = tile_unsupported_reason(problem, true, 80)) return reason;
  const PackedLayout& layout = problem.weight->layout;
  if (layout.blocks() > 1 && layout.block_size % sm80_int8_mma::kChunk)
    return "it takes block sizes that are multiples of 32";
  return nullptr;
}

void run_sm80_int8_mma(const LinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  const std::int64_t enough_tiles = bounds.enough_tiles ? bounds.enough_tiles : sm80_int8_mma::Tuning::kEnoughTiles;
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  DeviceWeight w = device_weight(*problem.weight);
  const bool activation_offsets = problem.compute == ComputeMode::int8_asym;
  const std::int64_t padded_block =
      round_up(std::max<std::int64_t>(std::min(w.block_size, w.k), 1), sm80_int8_mma::kChunk);
  const std::int64_t rows = rows_at_once(bounds, w.blocks * padded_block, problem.m);

  ScratchPlan plan;
  const auto codes = plan.add<std::int8_t>(rows * w.blocks * padded_block);
  const auto terms = plan.add<ActivationTerms>(rows * w.blocks);
  const auto weight_sums = plan.add<float>(activation_offsets ? weight_sum_count(w) : 0);
  CudaScratch scratch(plan, problem.device.index, stream);
  if (activation_offsets) add_weight_sums(w, scratch[weight_sums], stream);
  for (std::int64_t row = 0; row < problem.m; row += rows) {
    QuantizedRows<std::int8_t> x{scratch[codes], nullptr,     nullptr, nullptr, std::min(rows, problem.m - row),
                                 w.blocks,       padded_block};
    x.terms = scratch[terms];
    x.zero_code = problem.weight->layout.zero_code();
    quantize_activations(problem.x, row, w.k, w.block_size, problem.compute, x, stream);
    sm80_int8_mma::run<sm80_int8_mma::GemmRows>({x, row, w, device_output(problem), enough_tiles}, stream);
  }
}

}  // namespace qcore
