#include "activations/cuda/kernels.h"
#include "gemm/cuda/quantize_activations.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

template <class Code>
void run(const ActivationsProblem& problem) {
  QuantizedRows<Code> out{static_cast<Code*>(const_cast<void*>(problem.codes.data)),
                          nullptr,
                          nullptr,
                          nullptr,
                          problem.m,
                          ceil_div(problem.k, problem.block_size),
                          problem.block_size};
  out.plain = {problem.codes, problem.scales, problem.offsets};
  ActivationScales scales;
  scales.fixed = problem.fixed_scale;
  if (problem.fixed_scale != 0.0f) scales.source = ActivationScales::Source::fixed;
  quantize_activations(problem.x, scales, 0, problem.k, problem.block_size, problem.mode, out,
                       static_cast<cudaStream_t>(problem.stream));
}

}  // namespace

const char* simt_activations_unsupported_reason(const ActivationsProblem& problem) {
  return problem.device.type == DeviceType::cuda ? nullptr : "it runs on CUDA devices";
}

void run_simt_activations(const ActivationsProblem& problem) {
  DeviceGuard guard(problem.device.index);
  problem.mode == ComputeMode::int16 ? run<std::int16_t>(problem) : run<std::int8_t>(problem);
}

}  // namespace qcore
