#include "gru/gru_kernels.h"
#include "gru/kernels.h"
#include "runtime/cpu_features.h"

#if defined(QCORE_CUDA_BACKEND)
#include "gru/kernels_cuda.h"
#include "runtime/cuda_device.h"
#endif

namespace qcore {
namespace {

constexpr auto kCpuRow = DeviceType::cpu;

bool always() { return true; }

const char* on_cpu(const GruProblem& problem) {
  return problem.device.type == DeviceType::cpu ? nullptr : "it runs on the CPU";
}

#if defined(QCORE_CUDA_BACKEND)
constexpr const char* kNeedsCuda = "a CUDA device of compute capability 7.5 or higher";
#endif

#if defined(QCORE_X86_KERNELS)
bool has_avx2() { return cpu_features_in_use().avx2; }
bool has_avxvnni() { return cpu_features_in_use().avxvnni; }
bool has_avx512vnni() { return cpu_features_in_use().avx512vnni; }

template <const GruKernels& kernels>
void run_with(const GruProblem& problem) {
  run_gru_vector(problem, kernels);
}
#endif

// Best first.
KernelTable<GruProblem> table(
    "gru",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"persistent", DeviceType::cuda, kNeedsCuda, cuda_available, gru_persistent_why_not, run_gru_persistent},
        {"gemm", DeviceType::cuda, kNeedsCuda, cuda_available, gru_cuda_why_not, run_gru_cuda},
#endif
#if defined(QCORE_X86_KERNELS)
        {"avx512vnni", kCpuRow, "AVX-512 F, BW, DQ, VL and VNNI", has_avx512vnni, gru_vector_why_not,
         run_with<kGruAvx512Vnni>},
        {"avxvnni", kCpuRow, "AVX-VNNI, AVX2, FMA and F16C", has_avxvnni, gru_vector_why_not, run_with<kGruAvxVnni>},
        {"avx2", kCpuRow, "AVX2, FMA and F16C", has_avx2, gru_vector_why_not, run_with<kGruAvx2>},
#endif
        {"reference", kCpuRow, "nothing", always, on_cpu, run_gru_reference},
    });

}  // namespace

KernelTable<GruProblem>& gru_table() { return table; }

}  // namespace qcore
