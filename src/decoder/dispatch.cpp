#include "decoder/dispatch.h"

#include "decoder/cpu/vtable.h"
#include "runtime/requirements.h"

#if defined(QCORE_CUDA_BACKEND)
#include "decoder/cuda/kernels.h"
#endif

namespace qcore {
namespace {

#if defined(QCORE_VECTOR_KERNELS)

template <class Problem, void (*run)(const Problem&, const DecoderKernels&), const DecoderKernels& kernels>
void run_with(const Problem& problem) {
  run(problem, kernels);
}

#endif

// A row for CUDA devices; none in a build without the CUDA backend.
template <class Problem>
struct CudaRow {
  const char* (*unsupported_reason)(const Problem&);
  void (*run)(const Problem&);
};

// Returns an operator's rows, best first.
template <class Problem, void (*run)(const Problem&, const DecoderKernels&), void (*reference)(const Problem&)>
std::vector<Kernel<Problem>> rows_of([[maybe_unused]] const CudaRow<Problem>& cuda) {
  return {
#if defined(QCORE_CUDA_BACKEND)
      {"simt", kCuda75, cuda.unsupported_reason, cuda.run},
#endif
#if defined(QCORE_X86_KERNELS)
      {"avx512", kAvx512Vnni, cpu_unsupported_reason<Problem>, run_with<Problem, run, kDecoderAvx512>},
      {"avx2", kAvx2, cpu_unsupported_reason<Problem>, run_with<Problem, run, kDecoderAvx2>},
#endif
#if defined(QCORE_ARM_KERNELS)
      {"neon", kNeon, cpu_unsupported_reason<Problem>, run_with<Problem, run, kDecoderNeon>},
#endif
#if defined(QCORE_GENERIC_KERNELS)
      {"generic128", kGeneric128, cpu_unsupported_reason<Problem>, run_with<Problem, run, kDecoderGeneric128>},
#endif
      {"reference", kNoRequirement, cpu_unsupported_reason<Problem>, reference},
  };
}

#if defined(QCORE_CUDA_BACKEND)
constexpr CudaRow<NormProblem> kNormCuda{on_cuda_unsupported_reason, run_norm_cuda};
constexpr CudaRow<RotaryProblem> kRotaryCuda{rotary_cuda_unsupported_reason, run_rotary_cuda};
constexpr CudaRow<GateProblem> kGateCuda{on_cuda_unsupported_reason, run_gate_cuda};
constexpr CudaRow<CapProblem> kCapCuda{on_cuda_unsupported_reason, run_cap_cuda};
constexpr CudaRow<CacheProblem> kCacheCuda{cache_cuda_unsupported_reason, run_cache_cuda};
constexpr CudaRow<AttentionProblem> kAttentionCuda{attention_cuda_unsupported_reason, run_attention_cuda};
#else
constexpr CudaRow<NormProblem> kNormCuda{};
constexpr CudaRow<RotaryProblem> kRotaryCuda{};
constexpr CudaRow<GateProblem> kGateCuda{};
constexpr CudaRow<CapProblem> kCapCuda{};
constexpr CudaRow<CacheProblem> kCacheCuda{};
constexpr CudaRow<AttentionProblem> kAttentionCuda{};
#endif

KernelTable<NormProblem> norm_rows("decoder_rms_norm",
                                   rows_of<NormProblem, run_norm_cpu, run_norm_reference>(kNormCuda));
KernelTable<RotaryProblem> rotary_rows("decoder_rotary_embedding",
                                       rows_of<RotaryProblem, run_rotary_cpu, run_rotary_reference>(kRotaryCuda));
KernelTable<GateProblem> gate_rows("decoder_gated_activation",
                                   rows_of<GateProblem, run_gate_cpu, run_gate_reference>(kGateCuda));
KernelTable<CapProblem> cap_rows("decoder_soft_cap", rows_of<CapProblem, run_cap_cpu, run_cap_reference>(kCapCuda));
KernelTable<CacheProblem> cache_rows("decoder_write_cache",
                                     rows_of<CacheProblem, run_cache_cpu, run_cache_reference>(kCacheCuda));
KernelTable<AttentionProblem> attention_rows(
    "decoder_attention", rows_of<AttentionProblem, run_attention_cpu, run_attention_reference>(kAttentionCuda));

}  // namespace

bool run_heads_at_once([[maybe_unused]] const HeadsProblem& problem) {
#if defined(QCORE_CUDA_BACKEND)
  if (problem.device.type != DeviceType::cuda || problem.q.shape[3] > kMaxHeadSizeCuda) return false;
  if (norm_rows.forced() >= 0 || rotary_rows.forced() >= 0 || cache_rows.forced() >= 0) return false;
  run_heads_cuda(problem);
  return true;
#else
  return false;
#endif
}

KernelTable<NormProblem>& decoder_norm_dispatch() { return norm_rows; }
KernelTable<RotaryProblem>& decoder_rotary_dispatch() { return rotary_rows; }
KernelTable<GateProblem>& decoder_gate_dispatch() { return gate_rows; }
KernelTable<CapProblem>& decoder_cap_dispatch() { return cap_rows; }
KernelTable<CacheProblem>& decoder_cache_dispatch() { return cache_rows; }
KernelTable<AttentionProblem>& decoder_attention_dispatch() { return attention_rows; }

}  // namespace qcore
