#include "decoder/dispatch.h"

#include "decoder/cpu_vtable.h"
#include "runtime/cpu_features.h"

namespace qcore {
namespace {

constexpr auto kCpuRow = DeviceType::cpu;

bool always() { return true; }

template <class Problem>
const char* on_cpu(const Problem& problem) {
  return problem.device.type == DeviceType::cpu ? nullptr : "it runs on the CPU";
}

#if defined(QCORE_X86_KERNELS)
bool has_avx2() { return cpu_features_in_use().avx2; }
bool has_avx512() { return cpu_features_in_use().avx512vnni; }

template <class Problem, void (*run)(const Problem&, const DecoderKernels&), const DecoderKernels& kernels>
void run_with(const Problem& problem) {
  run(problem, kernels);
}

constexpr const char* kNeedsAvx2 = "AVX2, FMA and F16C";
constexpr const char* kNeedsAvx512 = "AVX-512 F, BW, DQ, VL and VNNI";
#endif

// Returns an operator's rows, best first.
template <class Problem, void (*run)(const Problem&, const DecoderKernels&), void (*reference)(const Problem&)>
std::vector<Kernel<Problem>> cpu_rows() {
  return {
#if defined(QCORE_X86_KERNELS)
      {"avx512", kCpuRow, kNeedsAvx512, has_avx512, on_cpu<Problem>, run_with<Problem, run, kDecoderAvx512>},
      {"avx2", kCpuRow, kNeedsAvx2, has_avx2, on_cpu<Problem>, run_with<Problem, run, kDecoderAvx2>},
#endif
      {"reference", kCpuRow, "nothing", always, on_cpu<Problem>, reference},
  };
}

KernelTable<NormProblem> norm_rows("decoder_rms_norm", cpu_rows<NormProblem, run_norm_cpu, run_norm_reference>());
KernelTable<RotaryProblem> rotary_rows("decoder_rotary_embedding",
                                       cpu_rows<RotaryProblem, run_rotary_cpu, run_rotary_reference>());
KernelTable<GateProblem> gate_rows("decoder_gated_activation",
                                   cpu_rows<GateProblem, run_gate_cpu, run_gate_reference>());
KernelTable<CapProblem> cap_rows("decoder_soft_cap", cpu_rows<CapProblem, run_cap_cpu, run_cap_reference>());
KernelTable<CacheProblem> cache_rows("decoder_write_cache",
                                     cpu_rows<CacheProblem, run_cache_cpu, run_cache_reference>());
KernelTable<AttentionProblem> attention_rows("decoder_attention",
                                             cpu_rows<AttentionProblem, run_attention_cpu, run_attention_reference>());

}  // namespace

KernelTable<NormProblem>& decoder_norm_table() { return norm_rows; }
KernelTable<RotaryProblem>& decoder_rotary_table() { return rotary_rows; }
KernelTable<GateProblem>& decoder_gate_table() { return gate_rows; }
KernelTable<CapProblem>& decoder_cap_table() { return cap_rows; }
KernelTable<CacheProblem>& decoder_cache_table() { return cache_rows; }
KernelTable<AttentionProblem>& decoder_attention_table() { return attention_rows; }

}  // namespace qcore
