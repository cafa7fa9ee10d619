#include "quantize/kernels.h"
#include "runtime/cpu_features.h"

namespace qcore {
namespace {

bool always() { return true; }

const char* takes_all(const QuantizeProblem&) { return nullptr; }

#if defined(QCORE_X86_KERNELS)
bool has_avx2() { return cpu_features_in_use().avx2; }

void run_avx2(const QuantizeProblem& problem) { run_quantize_cpu(problem, kQuantizeAvx2); }
#endif

// Best first. The same loops over vectors of 512 bits were no faster on Zen 4.
KernelTable<QuantizeProblem> rows("quantize",
                                  {
#if defined(QCORE_X86_KERNELS)
                                      {"avx2", DeviceType::cpu, "AVX2, FMA and F16C", has_avx2, takes_all, run_avx2},
#endif
                                      {"reference", DeviceType::cpu, "nothing", always, takes_all,
                                       run_quantize_reference},
                                  });

}  // namespace

KernelTable<QuantizeProblem>& quantize_table() { return rows; }

}  // namespace qcore
