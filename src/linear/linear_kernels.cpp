#include "linear/kernels.h"
#include "linear/tile_tables.h"
#include "runtime/cpu_features.h"

#if defined(QCORE_CUDA_BACKEND)
#include "linear/kernels_cuda.h"
#endif

namespace qcore {
namespace {

bool always() { return true; }

#if defined(QCORE_X86_KERNELS)
bool has_avx2() { return cpu_features_in_use().avx2; }
bool has_avxvnni() { return cpu_features_in_use().avxvnni; }
bool has_avx512vnni() { return cpu_features_in_use().avx512vnni; }
bool has_avx512bf16() { return cpu_features_in_use().avx512bf16; }

const char* int8_why_not(const LinearProblem& problem) {
  if (problem.compute != Compute::int8 && problem.compute != Compute::int8_asym)
    return "it computes in int8 and int8_asym";
  return tiled_why_not(problem);
}
const char* int16_why_not(const LinearProblem& problem) {
  return problem.compute == Compute::int16 ? tiled_why_not(problem) : "it computes in int16";
}
const char* float_why_not(const LinearProblem& problem) {
  return problem.compute == Compute::floating ? tiled_why_not(problem) : "it computes in float";
}

const char* bfloat_why_not(const LinearProblem& problem) {
  if (problem.compute != Compute::floating || problem.x.dtype != DType::bf16)
    return "it computes in float from bfloat16 x";
  return tiled_why_not(problem);
}

template <const TileKernels& kernels>
void run_with(const LinearProblem& problem) {
  run_tiled(problem, kernels);
}

// Without dot products of bytes, 4-bit codes have a faster way than 8-bit ones.
void run_int8_avx2(const LinearProblem& problem) {
  run_tiled(problem, problem.weight->layout.bits == 4 ? kInt8W4Avx2 : kInt8Avx2);
}

constexpr const char* kNeedsAvx2 = "AVX2, FMA and F16C";
constexpr const char* kNeedsAvxVnni = "AVX-VNNI";
constexpr const char* kNeedsAvx512Vnni = "AVX-512 F, BW, DQ, VL and VNNI";
constexpr const char* kNeedsAvx512Bf16 = "AVX-512 F, BW, DQ, VL, VNNI and BF16";
#endif

constexpr auto kCpuRow = DeviceType::cpu;

// Best first.
KernelTable<LinearProblem> table(
    "linear",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"float_mma", DeviceType::cuda, "a CUDA device of compute capability 8.0 or higher", cuda_kernels_available,
         float_mma_why_not, run_float_mma},
        {"int8_mma", DeviceType::cuda, "a CUDA device of compute capability 9.0", cuda_kernels_available,
         int8_mma_why_not, run_int8_mma},
        {"gemv", DeviceType::cuda, "a CUDA device of compute capability 7.5 or higher", cuda_kernels_available,
         gemv_why_not, run_gemv},
        {"wgmma", DeviceType::cuda, "a CUDA device of compute capability 9.0", cuda_kernels_available, wgmma_why_not,
         run_wgmma},
        {"fused", DeviceType::cuda, "a CUDA device of compute capability 8.0 or higher", cuda_kernels_available,
         fused_why_not, run_fused},
        {"sliced", DeviceType::cuda, "a CUDA device of compute capability 7.5 or higher", cuda_kernels_available,
         sliced_why_not, run_sliced},
        {"simt", DeviceType::cuda, "a CUDA device of compute capability 7.5 or higher", cuda_kernels_available,
         simt_why_not, run_simt},
#endif
#if defined(QCORE_X86_KERNELS)
        {"int8_avx512vnni", kCpuRow, kNeedsAvx512Vnni, has_avx512vnni, int8_why_not, run_with<kInt8Avx512Vnni>},
        {"int8_avxvnni", kCpuRow, kNeedsAvxVnni, has_avxvnni, int8_why_not, run_with<kInt8AvxVnni>},
        {"int8_avx2", kCpuRow, kNeedsAvx2, has_avx2, int8_why_not, run_int8_avx2},
        {"int16_avx512vnni", kCpuRow, kNeedsAvx512Vnni, has_avx512vnni, int16_why_not, run_with<kInt16Avx512Vnni>},
        {"int16_avxvnni", kCpuRow, kNeedsAvxVnni, has_avxvnni, int16_why_not, run_with<kInt16AvxVnni>},
        {"int16_avx2", kCpuRow, kNeedsAvx2, has_avx2, int16_why_not, run_with<kInt16Avx2>},
        {"float_avx512bf16", kCpuRow, kNeedsAvx512Bf16, has_avx512bf16, bfloat_why_not, run_with<kFloatAvx512Bf16>},
        {"float_avx512", kCpuRow, kNeedsAvx512Vnni, has_avx512vnni, float_why_not, run_with<kFloatAvx512>},
        {"float_avx2", kCpuRow, kNeedsAvx2, has_avx2, float_why_not, run_with<kFloatAvx2>},
#endif
        {"reference", kCpuRow, "nothing", always, reference_why_not, run_reference},
    });

}  // namespace

KernelTable<LinearProblem>& linear_table() { return table; }

}  // namespace qcore
