#include "linear/grouped/dispatch.h"

#include "gemm/dispatch.h"
#include "runtime/requirements.h"

#if defined(QCORE_CUDA_BACKEND)
#include "linear/grouped/cuda/kernels.h"
#endif

namespace qcore {
namespace {

#if defined(QCORE_VECTOR_KERNELS)
template <const BlockKernels& kernels>
void run_with(const GroupedLinearProblem& problem) {
  run_product(problem.product(), kernels);
}
#endif

#if defined(QCORE_CUDA_BACKEND)
template <void (*run)(const GroupedLinearProblem&, const ScratchBounds&)>
void bounded(const GroupedLinearProblem& problem) {
  run_expanded(problem, {}, run);
}
#endif

// Best first.
KernelTable<GroupedLinearProblem> table(
    "grouped_linear",
    {
#if defined(QCORE_CUDA_BACKEND)
        {"sm90_gemv", kCuda90, grouped_gemv_unsupported_reason, bounded<run_grouped_gemv>},
        {"sm90_int8_wgmma", kCuda90, grouped_sm90_int8_wgmma_unsupported_reason, bounded<run_grouped_sm90_int8_wgmma>},
        {"sm80_int8_mma", kCuda80, grouped_int8_mma_unsupported_reason, bounded<run_grouped_int8_mma>},
        {"simt", kCuda75, grouped_simt_unsupported_reason, bounded<run_grouped_simt>},
#endif
#if defined(QCORE_X86_KERNELS)
        {"int8_amx", kAmxInt8, int8_unsupported_reason, run_with<kInt8Amx>, amx_pays},
        {"int8_avx512vnni", kAvx512Vnni, int8_unsupported_reason, run_with<kInt8Avx512Vnni>},
        {"int8_avxvnni", kAvxVnni, int8_unsupported_reason, run_with<kInt8AvxVnni>},
        {"int8_avx2", kAvx2, int8_unsupported_reason, run_int8_avx2},
        {"int16_amx", kAmxInt8, int16_unsupported_reason, run_with<kInt16Amx>, amx_pays},
        {"int16_avx512vnni", kAvx512Vnni, int16_unsupported_reason, run_with<kInt16Avx512Vnni>},
        {"int16_avxvnni", kAvxVnni, int16_unsupported_reason, run_with<kInt16AvxVnni>},
        {"int16_avx2", kAvx2, int16_unsupported_reason, run_with<kInt16Avx2>},
        {"float_amx", kAmxBf16, bfloat_unsupported_reason, run_with<kFloatAmx>, amx_pays},
        {"float_avx512bf16", kAvx512Bf16, bfloat_unsupported_reason, run_with<kFloatAvx512Bf16>},
        {"float_avx512", kAvx512Vnni, float_unsupported_reason, run_with<kFloatAvx512>},
        {"float_avx2", kAvx2, float_unsupported_reason, run_with<kFloatAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
        {"int8_neon_i8mm", kNeonI8mm, int8_unsupported_reason, run_with<kInt8NeonI8mm>},
        {"int8_neon_dotprod", kNeonDotprod, int8_unsupported_reason, run_with<kInt8NeonDotprod>},
        {"int8_neon", kNeon, int8_unsupported_reason, run_with<kInt8Neon>},
        {"int16_neon", kNeon, int16_unsupported_reason, run_with<kInt16Neon>},
        {"float_neon", kNeon, float_unsupported_reason, run_with<kFloatNeon>},
#endif
#if defined(QCORE_GENERIC_KERNELS)
        {"int8_generic128", kGeneric128, int8_unsupported_reason, run_with<kInt8Generic128>},
        {"int16_generic128", kGeneric128, int16_unsupported_reason, run_with<kInt16Generic128>},
        {"float_generic128", kGeneric128, float_unsupported_reason, run_with<kFloatGeneric128>},
#endif
        {"reference", kNoRequirement, reference_unsupported_reason, run_reference},
    });

}  // namespace

KernelTable<GroupedLinearProblem>& grouped_linear_dispatch() { return table; }

}  // namespace qcore
