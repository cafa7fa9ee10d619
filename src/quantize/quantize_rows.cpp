#include "quantize/kernels.h"
#include "runtime/cpu_features.h"

namespace qcore {
namespace {

bool always() { return true; }

const char* takes_all(const QuantizeProblem&) { return nullptr; }

#if defined(QCORE_X86_KERNELS)
bool has_avx2() { return cpu_features_in_use().avx2; }
bool has_avx512() { return cpu_features_in_use().avx512vnni; }

const char* nearest_why_not(const QuantizeProblem& problem) {
  return problem.options.method == Method::rtn ? nullptr : "it rounds to nearest: method rtn";
}

template <const QuantizeKernels& kernels>
void run_with(const QuantizeProblem& problem) {
  run_quantize_cpu(problem, kernels);
}
#endif

// Best first.
KernelTable<QuantizeProblem> rows(
    "quantize", {
#if defined(QCORE_X86_KERNELS)
                    {"avx512", DeviceType::cpu, "AVX-512 F, BW, DQ, VL and VNNI", has_avx512, nearest_why_not,
                     run_with<kQuantizeAvx512>},
                    {"avx2", DeviceType::cpu, "AVX2, FMA and F16C", has_avx2, nearest_why_not, run_with<kQuantizeAvx2>},
#endif
                    {"reference", DeviceType::cpu, "nothing", always, takes_all, run_quantize_reference},
                });

}  // namespace

KernelTable<QuantizeProblem>& quantize_table() { return rows; }

}  // namespace qcore
