#include "activations/dispatch.h"

#include "runtime/requirements.h"

#if defined(QCORE_CUDA_BACKEND)
#include "activations/cuda/kernels.h"
#endif

namespace qcore {
namespace {

const char* cpu_unsupported_reason(const ActivationsProblem& problem) {
  return problem.device.type == DeviceType::cpu ? nullptr : "it runs on the CPU";
}

#if defined(QCORE_VECTOR_KERNELS)
const char* packed_unsupported_reason(const ActivationsProblem& problem) {
  if (problem.block_size > kLongestBlock) return "its int32 sums take blocks up to 65536";
  return cpu_unsupported_reason(problem);
}

template <const BlockKernels& kernels8, const BlockKernels& kernels16>
void run_packed(const ActivationsProblem& problem) {
  run_quantize_activations_cpu(problem, problem.mode == ComputeMode::int16 ? kernels16 : kernels8);
}
#endif

// Best first.
KernelTable<ActivationsProblem> table(
    "quantize_activations",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"simt", kCuda75, simt_activations_unsupported_reason, run_simt_activations},
#endif
#if defined(QCORE_X86_KERNELS)
        {"avx512vnni", kAvx512Vnni, packed_unsupported_reason, run_packed<kInt8Avx512Vnni, kInt16Avx512Vnni>},
        {"avx2", kAvx2, packed_unsupported_reason, run_packed<kInt8W4Avx2, kInt16Avx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
        {"neon", kNeon, packed_unsupported_reason, run_packed<kInt8Neon, kInt16Neon>},
#endif
#if defined(QCORE_GENERIC_KERNELS)
        {"generic128", kGeneric128, packed_unsupported_reason, run_packed<kInt8Generic128, kInt16Generic128>},
#endif
        {"reference", kNoRequirement, cpu_unsupported_reason, run_quantize_activations_reference},
    });

}  // namespace

KernelTable<ActivationsProblem>& quantize_activations_dispatch() { return table; }

}  // namespace qcore
