#include "conv2d/kernels.h"
#include "conv2d/tile_tables.h"
#include "runtime/cpu_features.h"

#if defined(QCORE_CUDA_BACKEND)
#include "conv2d/kernels_cuda.h"
#include "runtime/cuda_device.h"
#endif

namespace qcore {
namespace {

bool always() { return true; }

#if defined(QCORE_X86_KERNELS)
bool has_avx2() { return cpu_features_in_use().avx2; }
bool has_avxvnni() { return cpu_features_in_use().avxvnni; }
bool has_avx512vnni() { return cpu_features_in_use().avx512vnni; }

const char* int8_why_not(const Conv2dProblem& problem) {
  if (problem.compute != Compute::int8 && problem.compute != Compute::int8_asym)
    return "it computes in int8 and int8_asym";
  return tiled_conv_why_not(problem);
}
const char* int16_why_not(const Conv2dProblem& problem) {
  return problem.compute == Compute::int16 ? tiled_conv_why_not(problem) : "it computes in int16";
}
const char* float_why_not(const Conv2dProblem& problem) {
  return problem.compute == Compute::floating ? tiled_conv_why_not(problem) : "it computes in float";
}

const char* depthwise_why_not(const Conv2dProblem& problem) {
  if (problem.weight->layout.k != 1 || problem.outputs_per_group() != 1)
    return "it takes one input and one output channel per group";
  return tiled_conv_why_not(problem);
}

template <const ConvKernels& codes, const ConvKernels& floats>
void run_depthwise(const Conv2dProblem& problem) {
  run_tiled_conv(problem, problem.compute == Compute::floating ? floats : codes);
}

template <const ConvKernels& kernels>
void run_with(const Conv2dProblem& problem) {
  run_tiled_conv(problem, kernels);
}

// Without dot products of bytes, 4-bit codes have a faster way than 8-bit ones.
void run_int8_avx2(const Conv2dProblem& problem) {
  run_tiled_conv(problem, problem.weight->layout.bits == 4 ? kConvInt8W4Avx2 : kConvInt8Avx2);
}

constexpr const char* kNeedsAvx2 = "AVX2, FMA and F16C";
constexpr const char* kNeedsAvxVnni = "AVX-VNNI";
constexpr const char* kNeedsAvx512Vnni = "AVX-512 F, BW, DQ, VL and VNNI";
#endif

#if defined(QCORE_CUDA_BACKEND)
const char* linear_cuda_why_not(const Conv2dProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  return conv2d_linear_why_not(problem);
}
#endif

constexpr auto kCpuRow = DeviceType::cpu;

// Best first.
KernelTable<Conv2dProblem> table(
    "conv2d",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"linear_cuda", DeviceType::cuda, "a CUDA device of compute capability 7.5 or higher", cuda_available,
         linear_cuda_why_not, run_conv2d_linear},
        {"depthwise", DeviceType::cuda, "a CUDA device of compute capability 7.5 or higher", cuda_available,
         conv2d_depthwise_why_not, run_conv2d_depthwise},
        {"implicit_gemm", DeviceType::cuda, "a CUDA device of compute capability 8.0 or higher", cuda_available,
         conv2d_implicit_gemm_why_not, run_conv2d_implicit_gemm},
        {"implicit_gemm_float", DeviceType::cuda, "a CUDA device of compute capability 8.0 or higher", cuda_available,
         conv2d_implicit_gemm_float_why_not, run_conv2d_implicit_gemm_float},
        {"direct", DeviceType::cuda, "a CUDA device of compute capability 7.5 or higher", cuda_available,
         conv2d_direct_why_not, run_conv2d_direct},
#endif
        {"linear", kCpuRow, "nothing", always, conv2d_linear_why_not, run_conv2d_linear},
#if defined(QCORE_X86_KERNELS)
        {"depthwise_avx512", kCpuRow, kNeedsAvx512Vnni, has_avx512vnni, depthwise_why_not,
         run_depthwise<kConvDepthwiseAvx512, kConvDepthwiseFloatAvx512>},
        {"depthwise_avx2", kCpuRow, kNeedsAvx2, has_avx2, depthwise_why_not,
         run_depthwise<kConvDepthwiseAvx2, kConvDepthwiseFloatAvx2>},
        {"int8_avx512vnni", kCpuRow, kNeedsAvx512Vnni, has_avx512vnni, int8_why_not, run_with<kConvInt8Avx512Vnni>},
        {"int8_avxvnni", kCpuRow, kNeedsAvxVnni, has_avxvnni, int8_why_not, run_with<kConvInt8AvxVnni>},
        {"int8_avx2", kCpuRow, kNeedsAvx2, has_avx2, int8_why_not, run_int8_avx2},
        {"int16_avx512vnni", kCpuRow, kNeedsAvx512Vnni, has_avx512vnni, int16_why_not, run_with<kConvInt16Avx512Vnni>},
        {"int16_avxvnni", kCpuRow, kNeedsAvxVnni, has_avxvnni, int16_why_not, run_with<kConvInt16AvxVnni>},
        {"int16_avx2", kCpuRow, kNeedsAvx2, has_avx2, int16_why_not, run_with<kConvInt16Avx2>},
        {"float_avx512", kCpuRow, kNeedsAvx512Vnni, has_avx512vnni, float_why_not, run_with<kConvFloatAvx512>},
        {"float_avx2", kCpuRow, kNeedsAvx2, has_avx2, float_why_not, run_with<kConvFloatAvx2>},
#endif
        {"reference", kCpuRow, "nothing", always, conv2d_reference_why_not, run_conv2d_reference},
    });

}  // namespace

KernelTable<Conv2dProblem>& conv2d_table() { return table; }

}  // namespace qcore
