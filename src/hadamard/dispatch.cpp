#include "hadamard/dispatch.h"

#include "runtime/requirements.h"

namespace qcore {
namespace {

#if defined(QCORE_VECTOR_KERNELS)
template <const HadamardKernels& kernels>
void run_with(const HadamardProblem& problem) {
  run_hadamard_cpu(problem, kernels);
}
#endif

// Best first.
KernelTable<HadamardProblem> table(
    "hadamard", {
#if defined(QCORE_X86_KERNELS)
                    {"avx512", kAvx512Vnni, cpu_unsupported_reason<HadamardProblem>, run_with<kHadamardAvx512>},
                    {"avx2", kAvx2, cpu_unsupported_reason<HadamardProblem>, run_with<kHadamardAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
                    {"neon", kNeon, cpu_unsupported_reason<HadamardProblem>, run_with<kHadamardNeon>},
#endif
#if defined(QCORE_GENERIC_KERNELS)
                    {"generic128", kGeneric128, cpu_unsupported_reason<HadamardProblem>, run_with<kHadamardGeneric128>},
#endif
                    {"reference", kNoRequirement, cpu_unsupported_reason<HadamardProblem>, run_hadamard_reference},
                });

}  // namespace

KernelTable<HadamardProblem>& hadamard_dispatch() { return table; }

}  // namespace qcore
