#include "gru/dispatch.h"

#include "gru/cpu/gru_packed.h"
#include "recurrent/cpu/driver.h"
#include "runtime/requirements.h"

#if defined(QCORE_CUDA_BACKEND)
#include "gru/cuda/kernels.h"
#endif

namespace qcore {
namespace {

#if defined(QCORE_VECTOR_KERNELS)

template <const RecurrentKernels& kernels>
void run_with(const GruProblem& problem) {
  run_recurrent_vector(problem, problem.gru->packed->layer, kernels);
}

const char* vector_unsupported_reason(const GruProblem& problem) {
  if (!problem.gru->packed && !problem.gru->parameters.linear_before_reset)
    return "linear_before_reset is 0 with numbers of more than 32 bits, or with more than 32768 features or channels";
  return recurrent_vector_unsupported_reason(problem, problem.gru->packed != nullptr);
}
#endif

// Best first.
KernelTable<GruProblem> table("gru",
                              {
#if defined(QCORE_CUDA_BACKEND)
                                  {"sm75_persistent", kCuda75, gru_persistent_unsupported_reason, run_gru_persistent},
                                  {"sm75_stepwise", kCuda75, gru_cuda_unsupported_reason, run_gru_cuda},
#endif
#if defined(QCORE_X86_KERNELS)
                                  {"avx512vnni", kAvx512Vnni, vector_unsupported_reason, run_with<kGruAvx512Vnni>},
                                  {"avxvnni", kAvxVnni, vector_unsupported_reason, run_with<kGruAvxVnni>},
                                  {"avx2", kAvx2, vector_unsupported_reason, run_with<kGruAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
                                  {"neon_dotprod", kNeonDotprod, vector_unsupported_reason, run_with<kGruNeonDotprod>},
                                  {"neon", kNeon, vector_unsupported_reason, run_with<kGruNeon>},
#endif
#if defined(QCORE_GENERIC_KERNELS)
                                  {"generic128", kGeneric128, vector_unsupported_reason, run_with<kGruGeneric128>},
#endif
                                  {"reference", kNoRequirement, cpu_unsupported_reason<GruProblem>, run_gru_reference},
                              });

}  // namespace

KernelTable<GruProblem>& gru_dispatch() { return table; }

}  // namespace qcore
