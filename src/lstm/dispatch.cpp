#include "lstm/dispatch.h"

#include "lstm/cpu/packed.h"
#include "recurrent/cpu/driver.h"
#include "runtime/requirements.h"

#if defined(QCORE_CUDA_BACKEND)
#include "lstm/cuda/kernels.h"
#endif

namespace qcore {
namespace {

#if defined(QCORE_VECTOR_KERNELS)

template <const RecurrentKernels& kernels>
void run_with(const LstmProblem& problem) {
  run_recurrent_vector(problem, problem.lstm->packed->layer, kernels);
}

const char* vector_unsupported_reason(const LstmProblem& problem) {
  return recurrent_vector_unsupported_reason(problem, problem.lstm->packed != nullptr);
}
#endif

// Best first.
KernelTable<LstmProblem> table(
    "lstm", {
#if defined(QCORE_CUDA_BACKEND)
                {"sm75_persistent", kCuda75, lstm_persistent_unsupported_reason, run_lstm_persistent},
                {"sm75_stepwise", kCuda75, lstm_cuda_unsupported_reason, run_lstm_cuda},
#endif
#if defined(QCORE_X86_KERNELS)
                {"avx512vnni", kAvx512Vnni, vector_unsupported_reason, run_with<kLstmAvx512Vnni>},
                {"avxvnni", kAvxVnni, vector_unsupported_reason, run_with<kLstmAvxVnni>},
                {"avx2", kAvx2, vector_unsupported_reason, run_with<kLstmAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
                {"neon_dotprod", kNeonDotprod, vector_unsupported_reason, run_with<kLstmNeonDotprod>},
                {"neon", kNeon, vector_unsupported_reason, run_with<kLstmNeon>},
#endif
#if defined(QCORE_GENERIC_KERNELS)
                {"generic128", kGeneric128, vector_unsupported_reason, run_with<kLstmGeneric128>},
#endif
                {"reference", kNoRequirement, cpu_unsupported_reason<LstmProblem>, run_lstm_reference},
            });

}  // namespace

KernelTable<LstmProblem>& lstm_dispatch() { return table; }

}  // namespace qcore
