#include "awq/dispatch.h"

#include "runtime/requirements.h"

#if defined(QCORE_CUDA_BACKEND)
#include "awq/cuda/kernels.h"
#endif

namespace qcore {
namespace {

#if defined(QCORE_VECTOR_KERNELS)

template <class Problem, void (*run)(const Problem&, const AwqKernels&), const AwqKernels& kernels>
void run_with(const Problem& problem) {
  run(problem, kernels);
}

#endif

// Best first.
KernelTable<AwqProblem> awq_rows(
    "awq", {
#if defined(QCORE_CUDA_BACKEND)
               {"simt_lop3", kCuda75, awq_lop3_unsupported_reason, run_awq_lop3},
               {"simt_arithmetic", kCuda75, awq_arithmetic_unsupported_reason, run_awq_arithmetic},
#endif
#if defined(QCORE_X86_KERNELS)
               {"avx512", kAvx512Vnni, awq_cpu_unsupported_reason, run_with<AwqProblem, run_awq_cpu, kAwqAvx512>},
               {"avx2", kAvx2, awq_cpu_unsupported_reason, run_with<AwqProblem, run_awq_cpu, kAwqAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
               {"neon", kNeon, awq_cpu_unsupported_reason, run_with<AwqProblem, run_awq_cpu, kAwqNeon>},
#endif
               {"reference", kNoRequirement, cpu_unsupported_reason<AwqProblem>, run_awq_reference},
           });

KernelTable<AwqLinearProblem> awq_linear_rows(
    "awq_linear",
    {
#if defined(QCORE_X86_KERNELS)
        {"avx512", kAvx512Vnni, awq_linear_cpu_unsupported_reason,
         run_with<AwqLinearProblem, run_awq_linear_cpu, kAwqAvx512>},
        {"avx2", kAvx2, awq_linear_cpu_unsupported_reason, run_with<AwqLinearProblem, run_awq_linear_cpu, kAwqAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
        {"neon", kNeon, awq_linear_cpu_unsupported_reason, run_with<AwqLinearProblem, run_awq_linear_cpu, kAwqNeon>},
#endif
        {"reference", kNoRequirement, cpu_unsupported_reason<AwqLinearProblem>, run_awq_linear_reference},
    });

}  // namespace

KernelTable<AwqProblem>& awq_dispatch() { return awq_rows; }
KernelTable<AwqLinearProblem>& awq_linear_dispatch() { return awq_linear_rows; }

const AwqKernels* awq_kernels_in_use() {
#if defined(QCORE_X86_KERNELS)
  if (kAvx512Vnni.met()) return &kAwqAvx512;
  if (kAvx2.met()) return &kAwqAvx2;
#endif
#if defined(QCORE_ARM_KERNELS)
  if (kNeon.met()) return &kAwqNeon;
#endif
  return nullptr;
}

}  // namespace qcore
