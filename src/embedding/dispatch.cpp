#include "embedding/problem.h"
#include "runtime/requirements.h"

namespace qcore {
namespace {

#if defined(QCORE_CUDA_BACKEND)
const char* cuda_unsupported_reason(const EmbeddingProblem& problem) {
  return problem.device.type == DeviceType::cuda ? nullptr : "it runs on a CUDA device";
}
#endif

// Best first.
KernelTable<EmbeddingProblem> table("embedding", {
#if defined(QCORE_CUDA_BACKEND)
                                                     {"simt", kCuda75, cuda_unsupported_reason, run_embedding_cuda},
#endif
                                                     {"reference", kNoRequirement,
                                                      cpu_unsupported_reason<EmbeddingProblem>, run_embedding_cpu},
                                                 });

}  // namespace

KernelTable<EmbeddingProblem>& embedding_dispatch() { return table; }

}  // namespace qcore
