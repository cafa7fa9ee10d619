#include "runtime/cpu_features.h"
#include "static/kernels.h"
#include "static/tile_kernels.h"

#if defined(QCORE_CUDA_BACKEND)
#include "runtime/cuda_device.h"
#include "static/kernels_cuda.h"
#endif

namespace qcore {
namespace {

bool always() { return true; }

#if defined(QCORE_X86_KERNELS)
bool has_avx2() { return cpu_features_in_use().avx2; }
bool has_avxvnni() { return cpu_features_in_use().avxvnni; }
bool has_avx512vnni() { return cpu_features_in_use().avx512vnni; }

template <const StaticTileKernels& kernels>
void run_with(const StaticProblem& problem) {
  run_static_tiled(problem, kernels);
}
#endif

constexpr auto kCpuRow = DeviceType::cpu;

// Best first.
KernelTable<StaticProblem> table(
    "static", {
#if defined(QCORE_CUDA_BACKEND)
                  {"depthwise", DeviceType::cuda, "a CUDA device of compute capability 7.5 or higher", cuda_available,
                   static_depthwise_why_not, run_static_depthwise},
                  {"implicit_gemm", DeviceType::cuda, "a CUDA device of compute capability 7.5 or higher",
                   cuda_available, static_implicit_gemm_why_not, run_static_implicit_gemm},
                  {"direct", DeviceType::cuda, "a CUDA device of compute capability 7.5 or higher", cuda_available,
                   static_direct_why_not, run_static_direct},
#endif
#if defined(QCORE_X86_KERNELS)
                  {"avx512vnni", kCpuRow, "AVX-512 F, BW, DQ, VL and VNNI", has_avx512vnni, static_tiled_why_not,
                   run_with<kStaticAvx512Vnni>},
                  {"avxvnni", kCpuRow, "AVX-VNNI", has_avxvnni, static_tiled_why_not, run_with<kStaticAvxVnni>},
                  {"avx2", kCpuRow, "AVX2, FMA and F16C", has_avx2, static_tiled_why_not, run_with<kStaticAvx2>},
#endif
                  {"reference", kCpuRow, "nothing", always, static_reference_why_not, run_static_reference},
              });

}  // namespace

KernelTable<StaticProblem>& static_table() { return table; }

}  // namespace qcore
