#include "quantize/dispatch.h"

#include "quantize/dequantize.h"
#include "runtime/requirements.h"

namespace qcore {
namespace {

template <class Problem>
const char* takes_all(const Problem&) {
  return nullptr;
}

#if defined(QCORE_X86_KERNELS)
void run_quantize_avx2(const QuantizeProblem& problem) { run_quantize_cpu(problem, kQuantizeAvx2); }
void run_encode_avx2(const EncodeProblem& problem) { run_encode(problem, kQuantizeAvx2.encoded); }
void run_dequantize_avx2(const DequantizeProblem& problem) { run_dequantize_cpu(problem, kDequantizeAvx2); }
void run_dequantize_avx512(const DequantizeProblem& problem) { run_dequantize_cpu(problem, kDequantizeAvx512); }
#endif
#if defined(QCORE_ARM_KERNELS)
void run_quantize_neon(const QuantizeProblem& problem) { run_quantize_cpu(problem, kQuantizeNeon); }
void run_encode_neon(const EncodeProblem& problem) { run_encode(problem, kQuantizeNeon.encoded); }
void run_dequantize_neon(const DequantizeProblem& problem) { run_dequantize_cpu(problem, kDequantizeNeon); }
#endif

#if defined(QCORE_GENERIC_KERNELS)
void run_quantize_generic128(const QuantizeProblem& problem) { run_quantize_cpu(problem, kQuantizeGeneric128); }
void run_encode_generic128(const EncodeProblem& problem) { run_encode(problem, kQuantizeGeneric128.encoded); }
void run_dequantize_generic128(const DequantizeProblem& problem) { run_dequantize_cpu(problem, kDequantizeGeneric128); }
#endif

// Best first. The same loops over vectors of 512 bits were no faster on Zen 4.
KernelTable<QuantizeProblem> quantize_rows(
    "quantize", {
#if defined(QCORE_X86_KERNELS)
                    {"avx2", kAvx2, takes_all<QuantizeProblem>, run_quantize_avx2},
#endif
#if defined(QCORE_ARM_KERNELS)
                    {"neon", kNeon, takes_all<QuantizeProblem>, run_quantize_neon},
#endif
#if defined(QCORE_GENERIC_KERNELS)
                    {"generic128", kGeneric128, takes_all<QuantizeProblem>, run_quantize_generic128},
#endif
                    {"reference", kNoRequirement, takes_all<QuantizeProblem>, run_quantize_reference},
                });

void reference_errors(const CodeTable& table, const EncodedTask* tasks, int count, double* errors) {
  for (int i = 0; i < count; ++i) errors[i] = encoded_error_of(table, tasks[i]);
}
void reference_moments(const CodeTable& table, const EncodedTask* tasks, int count, EncodedMoments* sums) {
  for (int i = 0; i < count; ++i) sums[i] = encoded_moments_of(table, tasks[i]);
}
void reference_codes(const CodeTable& table, const EncodedTask& task, float* q) {
  for (std::int64_t at = 0; at < task.block->padded; at += kEncodedLanes)
    nearest_codes(table, task.block->values + at, task.inverse, task.offset, q + at);
}
void run_encode_reference(const EncodeProblem& problem) {
  run_encode(problem, {reference_errors, reference_moments, reference_codes});
}

KernelTable<EncodeProblem> encode_rows("quantize_encoded",
                                       {
#if defined(QCORE_X86_KERNELS)
                                           {"avx2", kAvx2, takes_all<EncodeProblem>, run_encode_avx2},
#endif
#if defined(QCORE_ARM_KERNELS)
                                           {"neon", kNeon, takes_all<EncodeProblem>, run_encode_neon},
#endif
#if defined(QCORE_GENERIC_KERNELS)
                                           {"generic128", kGeneric128, takes_all<EncodeProblem>, run_encode_generic128},
#endif
                                           {"reference", kNoRequirement, takes_all<EncodeProblem>,
                                            run_encode_reference},
                                       });

KernelTable<DequantizeProblem> dequantize_rows(
    "dequantize", {
#if defined(QCORE_X86_KERNELS)
                      {"avx512", kAvx512Vnni, takes_all<DequantizeProblem>, run_dequantize_avx512},
                      {"avx2", kAvx2, takes_all<DequantizeProblem>, run_dequantize_avx2},
#endif
#if defined(QCORE_ARM_KERNELS)
                      {"neon", kNeon, takes_all<DequantizeProblem>, run_dequantize_neon},
#endif
#if defined(QCORE_GENERIC_KERNELS)
                      {"generic128", kGeneric128, takes_all<DequantizeProblem>, run_dequantize_generic128},
#endif
                      {"reference", kNoRequirement, takes_all<DequantizeProblem>, run_dequantize_reference},
                  });

}  // namespace

KernelTable<QuantizeProblem>& quantize_dispatch() { return quantize_rows; }
KernelTable<EncodeProblem>& quantize_encoded_dispatch() { return encode_rows; }
KernelTable<DequantizeProblem>& dequantize_dispatch() { return dequantize_rows; }

}  // namespace qcore
