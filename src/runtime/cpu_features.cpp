#include "runtime/cpu_features.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "qcore/kernels.h"
#include "runtime/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#endif

namespace qcore {
namespace {

#if defined(__aarch64__)

#if defined(__linux__)
// Bits of the kernel's interface, by its documentation (arch/arm64/elf_hwcaps): older headers lack the second one.
bool has_dotprod() { return getauxval(AT_HWCAP) >> 20 & 1; }
bool has_i8mm() { return getauxval(AT_HWCAP2) >> 13 & 1; }
#elif defined(__APPLE__)
// Written by the documentation of macOS, and never run there.
bool has_feature(const char* name) {
  int value = 0;
  std::size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool has_dotprod() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has_feature("hw.optional.arm.FEAT_I8MM"); }
#elif defined(_WIN32)
// Written by the documentation of Windows, and never run there: PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE and
// PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE, of which older headers lack the second one.
bool has_dotprod() { return IsProcessorFeaturePresent(43); }
bool has_i8mm() { return IsProcessorFeaturePresent(66); }
#else
bool has_dotprod() { return false; }
bool has_i8mm() { return false; }
#endif

CpuFeatures detect() {
  CpuFeatures found{};
  found.neon = true;
  found.dotprod = has_dotprod();
  found.i8mm = found.dotprod && has_i8mm();
  return found;
}

void cap_features(CpuFeatures& found, const std::string& cap) {
  QCORE_CHECK_VALUE(cap == "baseline" || cap == "neon" || cap == "dotprod" || cap == "i8mm",
                    "environment variable QCORE_ISA is '", cap, "', expected baseline, neon, dotprod or i8mm");
  if (cap != "i8mm") found.i8mm = false;
  if (cap == "neon" || cap == "baseline") found.dotprod = false;
  if (cap == "baseline") found.neon = false;
}

#else

CpuFeatures detect() {
  CpuFeatures found{};
#if defined(__x86_64__)
  __builtin_cpu_init();
  found.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#if !defined(QCORE_AVX2_ONLY)
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
#endif
  return found;
}

void cap_features(CpuFeatures& found, const std::string& cap) {
  QCORE_CHECK_VALUE(cap == "baseline" || cap == "avx2" || cap == "avxvnni" || cap == "avx512vnni",
                    "environment variable QCORE_ISA is '", cap, "', expected baseline, avx2, avxvnni or avx512vnni");
  if (cap != "avx512vnni") found.avx512vnni = found.avx512bf16 = false;
  if (cap == "avx2" || cap == "baseline") found.avxvnni = false;
  if (cap == "baseline") found.avx2 = false;
}

#endif

CpuFeatures detect_and_cap() {
  CpuFeatures found = detect();
  const char* value = std::getenv("QCORE_ISA");
  const std::string cap = value ? value : "";
  if (!cap.empty()) cap_features(found, cap);
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
  if (features.neon) names.push_back("neon");
  if (features.dotprod) names.push_back("dotprod");
  if (features.i8mm) names.push_back("i8mm");
  return names;
}

}  // namespace qcore
