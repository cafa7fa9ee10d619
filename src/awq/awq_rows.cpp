#include "awq/kernels.h"
#include "runtime/cpu_features.h"

#if defined(QCORE_CUDA_BACKEND)
#include "awq/kernels_cuda.h"
#include "runtime/cuda_device.h"
#endif

namespace qcore {
namespace {

constexpr auto kCpuRow = DeviceType::cpu;

bool always() { return true; }

#if defined(QCORE_CUDA_BACKEND)
constexpr const char* kNeedsCuda = "a CUDA device of compute capability 7.5 or higher";
#endif

template <class Problem>
const char* on_cpu(const Problem& problem) {
  return problem.device.type == DeviceType::cpu ? nullptr : "it runs on the CPU";
}

#if defined(QCORE_X86_KERNELS)
bool has_avx2() { return cpu_features_in_use().avx2; }
bool has_avx512() { return cpu_features_in_use().avx512vnni; }

template <class Problem, void (*run)(const Problem&, const AwqKernels&), const AwqKernels& kernels>
void run_with(const Problem& problem) {
  run(problem, kernels);
}

constexpr const char* kNeedsAvx2 = "AVX2, FMA and F16C";
constexpr const char* kNeedsAvx512 = "AVX-512 F, BW, DQ, VL and VNNI";
#endif

// Best first.
KernelTable<AwqProblem> awq_rows(
    "awq",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"lop3", DeviceType::cuda, kNeedsCuda, cuda_available, awq_lop3_why_not, run_awq_lop3},
        {"arithmetic", DeviceType::cuda, kNeedsCuda, cuda_available, awq_arithmetic_why_not, run_awq_arithmetic},
#endif
#if defined(QCORE_X86_KERNELS)
        {"avx512", kCpuRow, kNeedsAvx512, has_avx512, awq_cpu_why_not, run_with<AwqProblem, run_awq_cpu, kAwqAvx512>},
        {"avx2", kCpuRow, kNeedsAvx2, has_avx2, awq_cpu_why_not, run_with<AwqProblem, run_awq_cpu, kAwqAvx2>},
#endif
        {"reference", kCpuRow, "nothing", always, on_cpu<AwqProblem>, run_awq_reference},
    });

KernelTable<AwqLinearProblem> awq_linear_rows("awq_linear",
                                              {
#if defined(QCORE_X86_KERNELS)
                                                  {"avx512", kCpuRow, kNeedsAvx512, has_avx512, awq_linear_cpu_why_not,
                                                   run_with<AwqLinearProblem, run_awq_linear_cpu, kAwqAvx512>},
                                                  {"avx2", kCpuRow, kNeedsAvx2, has_avx2, awq_linear_cpu_why_not,
                                                   run_with<AwqLinearProblem, run_awq_linear_cpu, kAwqAvx2>},
#endif
                                                  {"reference", kCpuRow, "nothing", always, on_cpu<AwqLinearProblem>,
                                                   run_awq_linear_reference},
                                              });

}  // namespace

KernelTable<AwqProblem>& awq_table() { return awq_rows; }
KernelTable<AwqLinearProblem>& awq_linear_table() { return awq_linear_rows; }

const AwqKernels* awq_kernels_in_use() {
#if defined(QCORE_X86_KERNELS)
  if (has_avx512()) return &kAwqAvx512;
  if (has_avx2()) return &kAwqAvx2;
#endif
  return nullptr;
}

}  // namespace qcore
