#include "runtime/cpu_features.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "qcore/kernels.h"
#include "runtime/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace qcore {
namespace {

CpuFeatures detect() {
  CpuFeatures found{};
#if defined(__x86_64__)
  __builtin_cpu_init();
  found.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  found.avx512vnni = found.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                     __builtin_cpu_supports("avx512vnni");
  found.avx512bf16 = found.avx512vnni && __builtin_cpu_supports("avx512bf16");
#if defined(QCORE_AVXVNNI_AS_EVEX)
  found.avxvnni = found.avx512vnni;
#else
  // g++ 12 has no __builtin_cpu_supports("avxvnni"): CPUID leaf 7, subleaf 1, EAX bit 4.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  found.avxvnni = found.avx2 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1u);
#endif
#endif
  return found;
}

CpuFeatures detect_and_cap() {
  CpuFeatures found = detect();
  const char* value = std::getenv("QCORE_ISA");
  const std::string cap = value ? value : "";
  if (cap.empty()) return found;
  QCORE_CHECK_VALUE(cap == "baseline" || cap == "avx2" || cap == "avxvnni" || cap == "avx512vnni",
                    "environment variable QCORE_ISA is '", cap, "', expected baseline, avx2, avxvnni or avx512vnni");
  if (cap != "avx512vnni") found.avx512vnni = found.avx512bf16 = false;
  if (cap == "avx2" || cap == "baseline") found.avxvnni = false;
  if (cap == "baseline") found.avx2 = false;
  return found;
}

}  // namespace

const CpuFeatures& cpu_features_in_use() {
  static const CpuFeatures features = detect_and_cap();
  return features;
}

std::vector<std::string> cpu_features() {
  const CpuFeatures& features = cpu_features_in_use();
  std::vector<std::string> names;
  if (features.avx2) names.push_back("avx2");
  if (features.avxvnni) names.push_back("avxvnni");
  if (features.avx512vnni) names.push_back("avx512vnni");
  if (features.avx512bf16) names.push_back("avx512bf16");
  return names;
}

}  // namespace qcore
