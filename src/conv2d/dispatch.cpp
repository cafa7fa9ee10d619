#include "conv2d/dispatch.h"

#include "conv2d/cpu/vtable.h"
#include "runtime/requirements.h"

#if defined(QCORE_CUDA_BACKEND)
#include "conv2d/cuda/kernels.h"
#endif

namespace qcore {
namespace {

#if defined(QCORE_X86_KERNELS)

const char* int8_unsupported_reason(const Conv2dProblem& problem) {
  if (problem.compute != ComputeMode::int8 && problem.compute != ComputeMode::int8_asym)
    return "it computes in int8 and int8_asym";
  return tiled_conv_unsupported_reason(problem);
}
const char* int16_unsupported_reason(const Conv2dProblem& problem) {
  return problem.compute == ComputeMode::int16 ? tiled_conv_unsupported_reason(problem) : "it computes in int16";
}
const char* float_unsupported_reason(const Conv2dProblem& problem) {
  return problem.compute == ComputeMode::floating ? tiled_conv_unsupported_reason(problem) : "it computes in float";
}

const char* depthwise_unsupported_reason(const Conv2dProblem& problem) {
  if (problem.weight->layout.k != 1 || problem.outputs_per_group() != 1)
    return "it takes one input and one output channel per group";
  return tiled_conv_unsupported_reason(problem);
}

template <const ConvKernels& codes, const ConvKernels& floats>
void run_depthwise(const Conv2dProblem& problem) {
  run_tiled_conv(problem, problem.compute == ComputeMode::floating ? floats : codes);
}

template <const ConvKernels& kernels>
void run_with(const Conv2dProblem& problem) {
  run_tiled_conv(problem, kernels);
}

// Without dot products of bytes, 4-bit codes have a faster way than 8-bit ones.
void run_int8_avx2(const Conv2dProblem& problem) {
  run_tiled_conv(problem, problem.weight->layout.bits == 4 ? kConvInt8W4Avx2 : kConvInt8Avx2);
}

#endif

#if defined(QCORE_CUDA_BACKEND)
const char* linear_cuda_unsupported_reason(const Conv2dProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  return conv2d_linear_unsupported_reason(problem);
}

template <void (*run)(const Conv2dProblem&, const Conv2dBounds&)>
void bounded(const Conv2dProblem& problem) {
  run(problem, {});
}
#endif

// Best first.
KernelTable<Conv2dProblem> table(
    "conv2d", {
#if defined(QCORE_CUDA_BACKEND)
                  {"linear_cuda", kCuda75, linear_cuda_unsupported_reason, run_conv2d_linear},
                  {"simt_depthwise", kCuda75, conv2d_depthwise_unsupported_reason, bounded<run_conv2d_depthwise>},
                  {"sm90_int8_implicit_gemm", kCuda90, sm90_int8_implicit_gemm_unsupported_reason,
                   bounded<run_sm90_int8_implicit_gemm>},
                  {"sm80_int8_implicit_gemm", kCuda80, sm80_int8_implicit_gemm_unsupported_reason,
                   bounded<run_sm80_int8_implicit_gemm>},
                  {"sm80_float_implicit_gemm", kCuda80, sm80_float_implicit_gemm_unsupported_reason,
                   bounded<run_sm80_float_implicit_gemm>},
                  {"simt", kCuda75, conv2d_simt_unsupported_reason, bounded<run_conv2d_simt>},
#endif
                  {"linear", kNoRequirement, conv2d_linear_unsupported_reason, run_conv2d_linear},
#if defined(QCORE_X86_KERNELS)
                  {"depthwise_avx512", kAvx512Vnni, depthwise_unsupported_reason,
                   run_depthwise<kConvDepthwiseAvx512, kConvDepthwiseFloatAvx512>},
                  {"depthwise_avx2", kAvx2, depthwise_unsupported_reason,
                   run_depthwise<kConvDepthwiseAvx2, kConvDepthwiseFloatAvx2>},
                  {"int8_avx512vnni", kAvx512Vnni, int8_unsupported_reason, run_with<kConvInt8Avx512Vnni>},
                  {"int8_avxvnni", kAvxVnni, int8_unsupported_reason, run_with<kConvInt8AvxVnni>},
                  {"int8_avx2", kAvx2, int8_unsupported_reason, run_int8_avx2},
                  {"int16_avx512vnni", kAvx512Vnni, int16_unsupported_reason, run_with<kConvInt16Avx512Vnni>},
                  {"int16_avxvnni", kAvxVnni, int16_unsupported_reason, run_with<kConvInt16AvxVnni>},
                  {"int16_avx2", kAvx2, int16_unsupported_reason, run_with<kConvInt16Avx2>},
                  {"float_avx512", kAvx512Vnni, float_unsupported_reason, run_with<kConvFloatAvx512>},
                  {"float_avx2", kAvx2, float_unsupported_reason, run_with<kConvFloatAvx2>},
#endif
                  {"reference", kNoRequirement, conv2d_reference_unsupported_reason, run_conv2d_reference},
              });

}  // namespace

KernelTable<Conv2dProblem>& conv2d_table() { return table; }

}  // namespace qcore
