#include "embedding/problem.h"
#include "runtime/requirements.h"

namespace qcore {
namespace {

#if defined(QCORE_CUDA_BACKEND)
const char* cuda_unsupported_reason(const EmbeddingProblem& problem) {
  return problem.device.type == DeviceType::cuda ? nullptr : "it runs on a CUDA device";
}
#endif

#if defined(QCORE_VECTOR_KERNELS)
template <const DequantizeKernels& kernels>
void run_with(const EmbeddingProblem& problem) {
  run_embedding_cpu(problem, kernels);
}
#endif

// Best first.
KernelTable<EmbeddingProblem> table(
    "embedding",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"simt", kCuda75, cuda_unsupported_reason, run_embedding_cuda},
#endif
#if defined(QCORE_X86_KERNELS)
        {"avx512", kAvx512Vnni, cpu_unsupported_reason<EmbeddingProblem>, run_with<kDequantizeAvx512>},
        {"avx2", kAvx2, cpu_unsupported_reason<EmbeddingProblem>, run_with<kDequantizeAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
        {"neon", kNeon, cpu_unsupported_reason<EmbeddingProblem>, run_with<kDequantizeNeon>},
#endif
#if defined(QCORE_GENERIC_KERNELS)
        {"generic128", kGeneric128, cpu_unsupported_reason<EmbeddingProblem>, run_with<kDequantizeGeneric128>},
#endif
        {"reference", kNoRequirement, cpu_unsupported_reason<EmbeddingProblem>, run_embedding_reference},
    });

}  // namespace

KernelTable<EmbeddingProblem>& embedding_dispatch() { return table; }

}  // namespace qcore
