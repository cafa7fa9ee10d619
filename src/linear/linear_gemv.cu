#include "linear/gemv_kernels.cuh"
#include "linear/kernels_cuda.h"
#include "runtime/cuda_device.h"
#include "runtime/cuda_scratch.h"

namespace qcore {
namespace {

constexpr std::int64_t kLargestExactBlock = 131071;  // 128 * 128 * block_size < 2^31
constexpr std::int64_t kMostColumns = std::int64_t{1} << 31;

void run_gemv_integer(const LinearProblem& problem, const DeviceWeight& w, std::int64_t padded_block,
                      cudaStream_t stream) {
  ScratchPlan plan;
  const auto codes = plan.add<std::int8_t>(problem.m * w.blocks * padded_block);
  const auto terms = plan.add<ActivationTerms>(problem.m * w.blocks);
  CudaScratch scratch(plan, problem.device.index, stream);
  QuantizedRows<std::int8_t> x{scratch[codes], nullptr, nullptr, nullptr, problem.m, w.blocks, padded_block};
  x.terms = scratch[terms];
  x.zero_code = problem.weight->layout.zero_code();
  quantize_activations(problem.x, 0, w.k, w.block_size, problem.compute, x, stream);
  const gemv::Walk walk = gemv::plan_walk(w, padded_block, static_cast<int>(problem.m));
  gemv::run_integer({x, 0, w, device_output(problem), walk, problem.compute == Compute::int8_asym}, stream);
}

void run_gemv_float(const LinearProblem& problem, const DeviceWeight& w, std::int64_t padded_block,
                    cudaStream_t stream) {
  ScratchPlan plan;
  const auto values = plan.add<float>(problem.m * w.blocks * padded_block);
  CudaScratch scratch(plan, problem.device.index, stream);
  const GatheredRows x{scratch[values], problem.m, w.blocks, padded_block, w.bits};
  gather_rows(problem.x, 0, w.k, w.block_size, x, stream);
  const gemv::Walk walk = gemv::plan_walk(w, padded_block, static_cast<int>(problem.m));
  gemv::run_float({x, 0, w, device_output(problem), walk}, stream);
}

}  // namespace

const char* gemv_why_not(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.compute == Compute::int16) return "it computes float, int8 and int8_asym only";
  const PackedLayout& layout = problem.weight->layout;
  if (layout.taps != 1) return "it takes weights [N, K] only";
  if (problem.compute == Compute::floating && problem.m > gemv::Tuning::kMostFloatRows)
    return "it takes M up to 8 with float activations";
  if (problem.m > gemv::Tuning::kMostRows) return "it takes M up to 32";
  if (layout.blocks() > 1 && layout.block_size % gemv::kChunk) return "it takes block sizes that are multiples of 32";
  if (problem.compute != Compute::floating && std::min(layout.block_size, layout.k) > kLargestExactBlock)
    return "its int32 sums take blocks up to 131071";
  if (layout.n > kMostColumns) return "it takes N up to 2^31";
  if (compute_capability(problem.device.index) < 75) return "it needs compute capability 7.5";
  return nullptr;
}

void run_gemv(const LinearProblem& problem) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  const DeviceWeight w = device_weight(*problem.weight);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  const std::int64_t padded_block = round_up(std::max<std::int64_t>(std::min(w.block_size, w.k), 1), gemv::kChunk);
  if (problem.compute == Compute::floating)
    run_gemv_float(problem, w, padded_block, stream);
  else
    run_gemv_integer(problem, w, padded_block, stream);
}

}  // namespace qcore
