#include <algorithm>

#include "gemm/cuda/weight_sums.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/simt/simt_kernels.cuh"
#include "linear/grouped/cuda/kernels.h"
#include "linear/grouped/cuda/operands.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

void run_simt_float(const LinearProblem& problem, const DeviceWeight& w, const DeviceOutput& out,
                    const ExpertCounts& experts, const ScratchBounds& bounds, cudaStream_t stream) {
  for (std::int64_t row = 0; row < problem.m; row += bounds.rows) {
    const std::int64_t rows = std::min(bounds.rows, problem.m - row);
    simt::run_float({problem.x, row, rows, w, out, experts}, stream);
  }
}

// Codes take 16 bits in every mode, so that one kernel serves all three.
void run_simt_integer(const LinearProblem& problem, DeviceWeight w, const DeviceOutput& out,
                      const ExpertCounts& experts, const ScratchBounds& bounds, cudaStream_t stream) {
  const bool activation_offsets = problem.compute == ComputeMode::int8_asym;
  const std::int64_t padded_block = round_up(std::min(w.block_size, w.k), 4);
  const std::int64_t row_codes = std::max<std::int64_t>(w.blocks * padded_block, 1);
  const std::int64_t most_rows =
      std::min(std::clamp<std::int64_t>(bounds.codes / row_codes, 1, bounds.rows), problem.m);

  ScratchPlan plan;
  const auto codes = plan.add<std::int16_t>(most_rows * row_codes);
  const auto scales = plan.add<float>(most_rows * w.blocks);
  const auto scaled_sums = plan.add<float>(w.offsets ? most_rows * w.blocks : 0);
  const auto offsets = plan.add<float>(activation_offsets ? most_rows * w.blocks : 0);
  const auto weight_sums = plan.add<float>(activation_offsets ? weight_sum_count(w) : 0);
  CudaScratch scratch(plan, problem.device.index, stream);

  if (activation_offsets) add_weight_sums(w, scratch[weight_sums], stream);
  for (std::int64_t row = 0; row < problem.m; row += most_rows) {
    const QuantizedRows<std::int16_t> x{scratch[codes],
                                        scratch[scales],
                                        w.offsets ? scratch[scaled_sums] : nullptr,
                                        activation_offsets ? scratch[offsets] : nullptr,
                                        std::min(most_rows, problem.m - row),
                                        w.blocks,
                                        padded_block};
    quantize_activations(problem.x, problem.scales, row, w.k, w.block_size, problem.compute, x, stream);
    simt::run_integer({x, row, w, out, experts}, stream);
  }
}

void run(const LinearProblem& problem, const DeviceOutput& out, const ExpertCounts& experts,
         const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  const DeviceWeight w = device_weight(*problem.weight);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  if (problem.compute == ComputeMode::floating)
    run_simt_float(problem, w, out, experts, bounds, stream);
  else
    run_simt_integer(problem, w, out, experts, bounds, stream);
}

}  // namespace

const char* simt_unsupported_reason(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.weight->layout.taps != 1) return "it takes weights [N, K] only";
  return nullptr;
}

void run_simt(const LinearProblem& problem, const ScratchBounds& bounds) {
  run(problem, device_output(problem), {}, bounds);
}

const char* grouped_simt_unsupported_reason(const GroupedLinearProblem& problem) {
  if (const char* reason = simt_unsupported_reason(problem)) return reason;
  return experts_unsupported_reason(problem);
}

void run_grouped_simt(const GroupedLinearProblem& problem, const ScratchBounds& bounds) {
  run(problem, expert_output(problem), expert_counts(problem), bounds);
}

}  // namespace qcore
