#include "quantize/dequantize.h"
#include "runtime/cpu_features.h"

namespace qcore {
namespace {

bool always() { return true; }

const char* takes_all(const DequantizeProblem&) { return nullptr; }

#if defined(QCORE_X86_KERNELS)
bool has_avx2() { return cpu_features_in_use().avx2; }

void run_avx2(const DequantizeProblem& problem) { run_dequantize_cpu(problem, kDequantizeAvx2); }
#endif

// Best first.
KernelTable<DequantizeProblem> rows("dequantize",
                                    {
#if defined(QCORE_X86_KERNELS)
                                        {"avx2", DeviceType::cpu, "AVX2, FMA and F16C", has_avx2, takes_all, run_avx2},
#endif
                                        {"reference", DeviceType::cpu, "nothing", always, takes_all,
                                         run_dequantize_reference},
                                    });

}  // namespace

KernelTable<DequantizeProblem>& dequantize_table() { return rows; }

}  // namespace qcore
