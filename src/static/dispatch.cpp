#include "static/dispatch.h"

#include "runtime/requirements.h"
#include "static/cpu/vtable.h"

#if defined(QCORE_CUDA_BACKEND)
#include "static/cuda/kernels.h"
#endif

namespace qcore {
namespace {

#if defined(QCORE_VECTOR_KERNELS)

template <const StaticTileKernels& kernels>
void run_with(const StaticProblem& problem) {
  run_static_tiled(problem, kernels);
}
#endif

#if defined(QCORE_X86_KERNELS)
void run_amx(const StaticProblem& problem) {
  run_static_tiled(problem, problem.layer->depthwise ? kStaticAvx512Vnni : kStaticAmx);
}

// Registers take as long for fewer than 16 pixels, and for fewer than 64 channels.
bool amx_pays(const StaticProblem& problem) {
  constexpr std::int64_t kMinPixels = 16, kMinChannels = 32;
  const StaticLayer& layer = *problem.layer;
  return !layer.depthwise && problem.results() >= kMinPixels && layer.layout.k > 0 &&
         layer.layout.k % kMinChannels == 0;
}
#endif

#if defined(QCORE_CUDA_BACKEND)
template <void (*run)(const StaticProblem&, const StaticBounds&)>
void bounded(const StaticProblem& problem) {
  run(problem, {});
}
#endif

// Best first.
KernelTable<StaticProblem> table(
    "static", {
#if defined(QCORE_CUDA_BACKEND)
                  {"simt_depthwise", kCuda75, static_depthwise_unsupported_reason, bounded<run_static_depthwise>},
                  {"sm90_int8_implicit_gemm", kCuda90, static_sm90_int8_implicit_gemm_unsupported_reason,
                   bounded<run_static_sm90_int8_implicit_gemm>},
                  {"sm75_int8_implicit_gemm", kCuda75, static_sm75_int8_implicit_gemm_unsupported_reason,
                   bounded<run_static_sm75_int8_implicit_gemm>},
                  {"simt", kCuda75, static_simt_unsupported_reason, bounded<run_static_simt>},
#endif
#if defined(QCORE_X86_KERNELS)
                  {"amx", kAmxInt8, static_tiled_unsupported_reason, run_amx, amx_pays},
                  {"avx512vnni", kAvx512Vnni, static_tiled_unsupported_reason, run_with<kStaticAvx512Vnni>},
                  {"avxvnni", kAvxVnni, static_tiled_unsupported_reason, run_with<kStaticAvxVnni>},
                  {"avx2", kAvx2, static_tiled_unsupported_reason, run_with<kStaticAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
                  {"neon_dotprod", kNeonDotprod, static_tiled_unsupported_reason, run_with<kStaticNeonDotprod>},
                  {"neon", kNeon, static_tiled_unsupported_reason, run_with<kStaticNeon>},
#endif
#if defined(QCORE_GENERIC_KERNELS)
                  {"generic128", kGeneric128, static_tiled_unsupported_reason, run_with<kStaticGeneric128>},
#endif
                  {"reference", kNoRequirement, static_reference_unsupported_reason, run_static_reference},
              });

}  // namespace

KernelTable<StaticProblem>& static_dispatch() { return table; }

}  // namespace qcore
