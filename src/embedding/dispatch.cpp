#include "embedding/problem.h"

#if defined(QCORE_CUDA_BACKEND)
#include "runtime/cuda_device.h"
#endif

namespace qcore {
namespace {

bool always() { return true; }

const char* cpu_unsupported_reason(const EmbeddingProblem& problem) {
  return problem.device == kCpu ? nullptr : "it runs on the CPU";
}

#if defined(QCORE_CUDA_BACKEND)
const char* cuda_unsupported_reason(const EmbeddingProblem& problem) {
  return problem.device.type == DeviceType::cuda ? nullptr : "it runs on a CUDA device";
}
#endif

// Best first.
KernelTable<EmbeddingProblem> table("embedding",
                                    {
#if defined(QCORE_CUDA_BACKEND)
                                        {"cuda", DeviceType::cuda, "a CUDA device of compute capability 7.5 or higher",
                                         cuda_available, cuda_unsupported_reason, run_embedding_cuda},
#endif
                                        {"reference", DeviceType::cpu, "nothing", always, cpu_unsupported_reason,
                                         run_embedding_cpu},
                                    });

}  // namespace

KernelTable<EmbeddingProblem>& embedding_table() { return table; }

}  // namespace qcore
