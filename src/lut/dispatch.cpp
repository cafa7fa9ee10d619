#include "lut/dispatch.h"

#include "runtime/requirements.h"

#if defined(QCORE_CUDA_BACKEND)
#include "lut/cuda/kernels.h"
#endif

namespace qcore {
namespace {

#if defined(QCORE_VECTOR_KERNELS)

template <class Problem, void (*run)(const Problem&, const LutKernels&), const LutKernels& kernels>
void run_with(const Problem& problem) {
  run(problem, kernels);
}

#endif

// Best first.
KernelTable<LutProblem> lut_rows(
    "lut",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"simt", kCuda75, lut_cuda_unsupported_reason, run_lut_cuda},
#endif
#if defined(QCORE_X86_KERNELS)
        {"avx512", kAvx512Vnni, cpu_unsupported_reason<LutProblem>, run_with<LutProblem, run_lut_cpu, kLutAvx512>},
        {"avx2", kAvx2, cpu_unsupported_reason<LutProblem>, run_with<LutProblem, run_lut_cpu, kLutAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
        {"neon", kNeon, cpu_unsupported_reason<LutProblem>, run_with<LutProblem, run_lut_cpu, kLutNeon>},
#endif
#if defined(QCORE_GENERIC_KERNELS)
        {"generic128", kGeneric128, cpu_unsupported_reason<LutProblem>,
         run_with<LutProblem, run_lut_cpu, kLutGeneric128>},
#endif
        {"reference", kNoRequirement, cpu_unsupported_reason<LutProblem>, run_lut_reference},
    });

KernelTable<RowProblem> softmax_rows(
    "softmax",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"simt", kCuda75, row_cuda_unsupported_reason, run_softmax_cuda},
#endif
#if defined(QCORE_X86_KERNELS)
        {"avx512", kAvx512Vnni, cpu_unsupported_reason<RowProblem>, run_with<RowProblem, run_softmax_cpu, kLutAvx512>},
        {"avx2", kAvx2, cpu_unsupported_reason<RowProblem>, run_with<RowProblem, run_softmax_cpu, kLutAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
        {"neon", kNeon, cpu_unsupported_reason<RowProblem>, run_with<RowProblem, run_softmax_cpu, kLutNeon>},
#endif
#if defined(QCORE_GENERIC_KERNELS)
        {"generic128", kGeneric128, cpu_unsupported_reason<RowProblem>,
         run_with<RowProblem, run_softmax_cpu, kLutGeneric128>},
#endif
        {"reference", kNoRequirement, cpu_unsupported_reason<RowProblem>, run_softmax_reference},
    });

KernelTable<RowProblem> rms_norm_rows(
    "rms_norm",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"simt", kCuda75, row_cuda_unsupported_reason, run_rms_norm_cuda},
#endif
#if defined(QCORE_X86_KERNELS)
        {"avx512", kAvx512Vnni, cpu_unsupported_reason<RowProblem>, run_with<RowProblem, run_rms_norm_cpu, kLutAvx512>},
        {"avx2", kAvx2, cpu_unsupported_reason<RowProblem>, run_with<RowProblem, run_rms_norm_cpu, kLutAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
        {"neon", kNeon, cpu_unsupported_reason<RowProblem>, run_with<RowProblem, run_rms_norm_cpu, kLutNeon>},
#endif
#if defined(QCORE_GENERIC_KERNELS)
        {"generic128", kGeneric128, cpu_unsupported_reason<RowProblem>,
         run_with<RowProblem, run_rms_norm_cpu, kLutGeneric128>},
#endif
        {"reference", kNoRequirement, cpu_unsupported_reason<RowProblem>, run_rms_norm_reference},
    });

}  // namespace

KernelTable<LutProblem>& lut_dispatch() { return lut_rows; }
KernelTable<RowProblem>& softmax_dispatch() { return softmax_rows; }
KernelTable<RowProblem>& rms_norm_dispatch() { return rms_norm_rows; }

}  // namespace qcore
