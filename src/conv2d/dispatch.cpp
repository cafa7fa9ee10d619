#include "conv2d/dispatch.h"

#include "conv2d/cpu/depthwise.h"
#include "conv2d/cpu/depthwise_product.h"
#include "gemm/dispatch.h"
#include "runtime/requirements.h"

#if defined(QCORE_CUDA_BACKEND)
#include "conv2d/cuda/kernels.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/memory.h"
#endif

namespace qcore {
namespace {

#if defined(QCORE_VECTOR_KERNELS)

const char* depthwise_unsupported_reason(const Conv2dProblem& problem) {
  if (problem.weight->layout.k != 1 || problem.outputs_per_group() != 1)
    return "it takes one input and one output channel per group";
  return tiled_unsupported_reason(problem);
}

template <const BlockKernels& codes, const BlockKernels& floats>
void run_depthwise(const Conv2dProblem& problem) {
  run_depthwise_product(problem.product(), problem.compute == ComputeMode::floating ? floats : codes);
}

template <const BlockKernels& kernels>
void run_with(const Conv2dProblem& problem) {
  run_product(problem.product(), kernels);
}

#endif

#if defined(QCORE_CUDA_BACKEND)
const char* linear_cuda_unsupported_reason(const Conv2dProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  return conv2d_linear_unsupported_reason(problem);
}

// Whether `linear` takes less time than the implicit GEMMs, as measured on one H100 with fp16 x and 29 layers: see
// docs/notes/convolutions.md, "The choice for 1x1 windows".
bool linear_cuda_pays(const Conv2dProblem& problem) {
  const PackedLayout& layout = problem.weight->layout;
  const std::int64_t results = problem.batch * problem.rows.output * problem.columns.output;
  const auto tiles = [&](std::int64_t rows) { return ceil_div(layout.n, 128) * ceil_div(results, rows); };
  if (problem.compute == ComputeMode::floating) {
    constexpr std::int64_t kMaxTiles = 8, kMinDepth = 1024;
    const bool few_deep_tiles = tiles(64) <= kMaxTiles && layout.k >= kMinDepth;
    return !few_deep_tiles || problem.x.dtype == DType::f32 || compute_capability(problem.device.index) != 90 ||
           sm80_float_implicit_gemm_unsupported_reason(problem);
  }
  if (sm90_int8_implicit_gemm_unsupported_reason(problem)) return true;
  // `linear` has tiles of its own for one block per row; the implicit GEMM has none for a few, only for very few.
  constexpr std::int64_t kMaxOneBlockResults = 4096, kFewTiles = 30, kEnoughTiles = 96;
  if (layout.blocks() == 1) return results > kMaxOneBlockResults;
  return tiles(32) >= kFewTiles && tiles(32) < kEnoughTiles;
}

template <void (*run)(const Conv2dProblem&, const Conv2dBounds&)>
void bounded(const Conv2dProblem& problem) {
  run(problem, {});
}
#endif

// Best first.
KernelTable<Conv2dProblem> table(
    "conv2d",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"linear_cuda", kCuda75, linear_cuda_unsupported_reason, run_conv2d_linear, linear_cuda_pays},
        {"simt_depthwise", kCuda75, conv2d_depthwise_unsupported_reason, bounded<run_conv2d_depthwise>},
        {"sm90_int8_implicit_gemm", kCuda90, sm90_int8_implicit_gemm_unsupported_reason,
         bounded<run_sm90_int8_implicit_gemm>},
        {"sm80_int8_implicit_gemm", kCuda80, sm80_int8_implicit_gemm_unsupported_reason,
         bounded<run_sm80_int8_implicit_gemm>},
        {"sm90_float_implicit_gemm", kCuda90, sm90_float_implicit_gemm_unsupported_reason,
         bounded<run_sm90_float_implicit_gemm>, sm90_float_implicit_gemm_pays},
        {"sm80_float_implicit_gemm", kCuda80, sm80_float_implicit_gemm_unsupported_reason,
         bounded<run_sm80_float_implicit_gemm>},
        {"simt", kCuda75, conv2d_simt_unsupported_reason, bounded<run_conv2d_simt>},
#endif
        {"linear", kNoRequirement, conv2d_linear_unsupported_reason, run_conv2d_linear},
#if defined(QCORE_X86_KERNELS)
        {"depthwise_avx512", kAvx512Vnni, depthwise_unsupported_reason,
         run_depthwise<kDepthwiseAvx512, kDepthwiseFloatAvx512>},
        {"depthwise_avx2", kAvx2, depthwise_unsupported_reason, run_depthwise<kDepthwiseAvx2, kDepthwiseFloatAvx2>},
        {"int8_amx", kAmxInt8, int8_unsupported_reason, run_with<kInt8Amx>, amx_pays},
        {"int8_avx512vnni", kAvx512Vnni, int8_unsupported_reason, run_with<kInt8Avx512Vnni>},
        {"int8_avxvnni", kAvxVnni, int8_unsupported_reason, run_with<kInt8AvxVnni>},
        {"int8_avx2", kAvx2, int8_unsupported_reason, run_int8_avx2},
        {"int16_amx", kAmxInt8, int16_unsupported_reason, run_with<kInt16Amx>, amx_pays},
        {"int16_avx512vnni", kAvx512Vnni, int16_unsupported_reason, run_with<kInt16Avx512Vnni>},
        {"int16_avxvnni", kAvxVnni, int16_unsupported_reason, run_with<kInt16AvxVnni>},
        {"int16_avx2", kAvx2, int16_unsupported_reason, run_with<kInt16Avx2>},
        {"float_amx", kAmxBf16, bfloat_unsupported_reason, run_with<kFloatAmx>, amx_pays},
        {"float_avx512", kAvx512Vnni, float_unsupported_reason, run_with<kFloatAvx512>},
        {"float_avx2", kAvx2, float_unsupported_reason, run_with<kFloatAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
        {"depthwise_neon", kNeon, depthwise_unsupported_reason, run_depthwise<kDepthwiseNeon, kDepthwiseFloatNeon>},
        {"int8_neon_i8mm", kNeonI8mm, int8_unsupported_reason, run_with<kInt8NeonI8mm>},
        {"int8_neon_dotprod", kNeonDotprod, int8_unsupported_reason, run_with<kInt8NeonDotprod>},
        {"int8_neon", kNeon, int8_unsupported_reason, run_with<kInt8Neon>},
        {"int16_neon", kNeon, int16_unsupported_reason, run_with<kInt16Neon>},
        {"float_neon", kNeon, float_unsupported_reason, run_with<kFloatNeon>},
#endif
#if defined(QCORE_GENERIC_KERNELS)
        {"depthwise_generic128", kGeneric128, depthwise_unsupported_reason,
         run_depthwise<kDepthwiseGeneric128, kDepthwiseFloatGeneric128>},
        {"int8_generic128", kGeneric128, int8_unsupported_reason, run_with<kInt8Generic128>},
        {"int16_generic128", kGeneric128, int16_unsupported_reason, run_with<kInt16Generic128>},
        {"float_generic128", kGeneric128, float_unsupported_reason, run_with<kFloatGeneric128>},
#endif
        {"reference", kNoRequirement, reference_unsupported_reason, run_reference},
    });

}  // namespace

KernelTable<Conv2dProblem>& conv2d_dispatch() { return table; }

}  // namespace qcore
