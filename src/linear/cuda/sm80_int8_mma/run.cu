#include <algorithm>

#include "gemm/cuda/sm80_int8_mma/launch.cuh"
#include "gemm/cuda/weight_sums.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/scratch_bounds.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr std::int64_t kMaxExactBlock = 131071;  // 128 * 128 * block_size < 2^31
constexpr std::int64_t kMaxColumns = std::int64_t{1} << 31;
constexpr std::int64_t kMaxDepth = 1 << 28;  // 8 panels of it are counted in int, 16 bytes at a time

void run_passes(const LinearProblem& problem, DeviceWeight w, const ScratchBounds& bounds, std::int64_t enough_tiles,
                cudaStream_t stream) {
  const bool activation_offsets = problem.compute == ComputeMode::int8_asym;
  const std::int64_t padded_block =
      round_up(std::max<std::int64_t>(std::min(w.block_size, w.k), 1), sm80_int8_mma::kChunk);
  const std::int64_t row_codes = std::max<std::int64_t>(w.blocks * padded_block, 1);
  const std::int64_t rows =
      std::min(std::max(std::min(bounds.codes / row_codes, bounds.rows), bounds.fewest_rows), problem.m);

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

}  // namespace

const char* sm80_int8_mma_unsupported_reason(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.compute != ComputeMode::int8 && problem.compute != ComputeMode::int8_asym)
    return "it computes int8 and int8_asym only";
  const PackedLayout& layout = problem.weight->layout;
  if (layout.taps != 1) return "it takes weights [N, K] only";
  if (layout.blocks() > 1 && layout.block_size % sm80_int8_mma::kChunk)
    return "it takes block sizes that are multiples of 32";
  if (std::min(layout.block_size, layout.k) > kMaxExactBlock) return "its int32 sums take blocks up to 131071";
  if (layout.k > kMaxDepth) return "it takes K up to 2^28";
  if (layout.n > kMaxColumns) return "it takes N up to 2^31";
  if (compute_capability(problem.device.index) < 80) return "it needs compute capability 8.0";
  return nullptr;
}

void run_sm80_int8_mma(const LinearProblem& problem, const ScratchBounds& bounds, std::int64_t enough_tiles) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  run_passes(problem, device_weight(*problem.weight), bounds, enough_tiles, static_cast<cudaStream_t>(problem.stream));
}

void run_sm80_int8_mma(const LinearProblem& problem) {
  run_sm80_int8_mma(problem, ScratchBounds{}, sm80_int8_mma::Tuning::kEnoughTiles);
}

}  // namespace qcore
