#include "lut/kernels.h"
#include "runtime/cpu_features.h"

#if defined(QCORE_CUDA_BACKEND)
#include "lut/kernels_cuda.h"
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

template <class Problem, void (*run)(const Problem&, const LutKernels&), const LutKernels& kernels>
void run_with(const Problem& problem) {
  run(problem, kernels);
}

constexpr const char* kNeedsAvx2 = "AVX2, FMA and F16C";
constexpr const char* kNeedsAvx512 = "AVX-512 F, BW, DQ, VL and VNNI";
#endif

// Best first.
KernelTable<LutProblem> lut_rows(
    "lut", {
#if defined(QCORE_CUDA_BACKEND)
               {"cuda", DeviceType::cuda, kNeedsCuda, cuda_available, lut_cuda_why_not, run_lut_cuda},
#endif
#if defined(QCORE_X86_KERNELS)
               {"avx512", kCpuRow, kNeedsAvx512, has_avx512, on_cpu<LutProblem>,
                run_with<LutProblem, run_lut_cpu, kLutAvx512>},
               {"avx2", kCpuRow, kNeedsAvx2, has_avx2, on_cpu<LutProblem>, run_with<LutProblem, run_lut_cpu, kLutAvx2>},
#endif
               {"reference", kCpuRow, "nothing", always, on_cpu<LutProblem>, run_lut_reference},
           });

KernelTable<RowProblem> softmax_rows(
    "softmax",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"cuda", DeviceType::cuda, kNeedsCuda, cuda_available, row_cuda_why_not, run_softmax_cuda},
#endif
#if defined(QCORE_X86_KERNELS)
        {"avx512", kCpuRow, kNeedsAvx512, has_avx512, on_cpu<RowProblem>,
         run_with<RowProblem, run_softmax_cpu, kLutAvx512>},
        {"avx2", kCpuRow, kNeedsAvx2, has_avx2, on_cpu<RowProblem>, run_with<RowProblem, run_softmax_cpu, kLutAvx2>},
#endif
        {"reference", kCpuRow, "nothing", always, on_cpu<RowProblem>, run_softmax_reference},
    });

KernelTable<RowProblem> rms_norm_rows(
    "rms_norm",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"cuda", DeviceType::cuda, kNeedsCuda, cuda_available, row_cuda_why_not, run_rms_norm_cuda},
#endif
#if defined(QCORE_X86_KERNELS)
        {"avx512", kCpuRow, kNeedsAvx512, has_avx512, on_cpu<RowProblem>,
         run_with<RowProblem, run_rms_norm_cpu, kLutAvx512>},
        {"avx2", kCpuRow, kNeedsAvx2, has_avx2, on_cpu<RowProblem>, run_with<RowProblem, run_rms_norm_cpu, kLutAvx2>},
#endif
        {"reference", kCpuRow, "nothing", always, on_cpu<RowProblem>, run_rms_norm_reference},
    });

}  // namespace

KernelTable<LutProblem>& lut_table() { return lut_rows; }
KernelTable<RowProblem>& softmax_table() { return softmax_rows; }
KernelTable<RowProblem>& rms_norm_table() { return rms_norm_rows; }

}  // namespace qcore
