#include "runtime/cpu_features.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "qcore/kernels.h"
#include "runtime/check.h"

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
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
  QCORE_CHECK_VALUE(cap == "baseline" || cap == "generic128" || cap == "neon" || cap == "dotprod" || cap == "i8mm",
                    "environment variable QCORE_ISA is '", cap,
                    "', expected baseline, generic128, neon, dotprod or i8mm");
  if (cap != "i8mm") found.i8mm = false;
  if (cap != "i8mm" && cap != "dotprod") found.dotprod = false;
  if (cap == "baseline" || cap == "generic128") found.neon = false;
}

#else

#if defined(__x86_64__)
// What CPUID says, by Intel's manual: not __builtin_cpu_supports(), which g++ 12 does not know avxvnni by, and whose
// variables ziglang lacks for Windows.
struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  Cpuid(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

bool all_of(unsigned bits, std::initializer_list<int> wanted) {
  for (const int bit : wanted)
    if (!(bits >> bit & 1u)) return false;
  return true;
}

// Which registers the system saves.
unsigned saved_registers() {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}
#endif

#if defined(__x86_64__) && defined(__linux__)
// Asks for the 8 KiB of tile registers, once for all threads of the process. Linux before 5.16 does not know the
// request, and containers may forbid it.
bool may_use_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool may_use_amx() { return false; }
#endif

#if defined(QCORE_AMX_EMULATED)
constexpr bool kAmxIsEmulated = true;
#else
constexpr bool kAmxIsEmulated = false;
#endif

CpuFeatures detect() {
  CpuFeatures found{};
#if defined(__x86_64__)
  const Cpuid basic(1, 0), extended(7, 0), more(7, 1);
  constexpr int kFma = 12, kXsave = 27, kAvx = 28, kF16c = 29;                             // of basic.ecx
  constexpr int kAvx2 = 5, kAvx512f = 16, kAvx512dq = 17, kAvx512bw = 30, kAvx512vl = 31;  // of extended.ebx
  const unsigned saved = all_of(basic.ecx, {kXsave}) ? saved_registers() : 0;
  found.avx2 = all_of(saved, {1, 2}) && all_of(basic.ecx, {kFma, kAvx, kF16c}) && all_of(extended.ebx, {kAvx2});
  found.avx512vnni = found.avx2 && all_of(saved, {5, 6, 7}) && all_of(extended.ecx, {11}) &&
                     all_of(extended.ebx, {kAvx512f, kAvx512dq, kAvx512bw, kAvx512vl});
  found.avx512bf16 = found.avx512vnni && all_of(more.eax, {5});
  constexpr int kAmxBf16 = 22, kAmxTile = 24, kAmxInt8 = 25;  // of extended.edx
  const bool has_amx = all_of(saved, {17, 18}) && all_of(extended.edx, {kAmxTile, kAmxInt8});
  found.amx_int8 = found.avx512vnni && (has_amx || kAmxIsEmulated);
  found.amx_bf16 = found.amx_int8 && (all_of(extended.edx, {kAmxBf16}) || kAmxIsEmulated);
#if defined(QCORE_AVXVNNI_AS_EVEX)
  found.avxvnni = found.avx512vnni;
#else
  found.avxvnni = found.avx2 && all_of(more.eax, {4});
#endif
#if defined(QCORE_AVX2_ONLY)
  found.avxvnni = found.avx512vnni = found.avx512bf16 = found.amx_int8 = found.amx_bf16 = false;
#endif
#endif
  return found;
}

void cap_features(CpuFeatures& found, const std::string& cap) {
  QCORE_CHECK_VALUE(cap == "baseline" || cap == "generic128" || cap == "avx2" || cap == "avxvnni" ||
                        cap == "avx512vnni" || cap == "amx",
                    "environment variable QCORE_ISA is '", cap,
                    "', expected baseline, generic128, avx2, avxvnni, avx512vnni or amx");
  if (cap != "amx") found.amx_int8 = found.amx_bf16 = false;
  if (cap != "amx" && cap != "avx512vnni") found.avx512vnni = found.avx512bf16 = false;
  if (cap == "avx2" || cap == "generic128" || cap == "baseline") found.avxvnni = false;
  if (cap == "generic128" || cap == "baseline") found.avx2 = false;
}

#endif

CpuFeatures detect_and_cap() {
  CpuFeatures found = detect();
  const char* value = std::getenv("QCORE_ISA");
  const std::string cap = value ? value : "";
  if (!cap.empty()) cap_features(found, cap);
  found.generic128 = cap != "baseline";
#if !defined(__aarch64__)
  // Asked for even where an emulator stands in for what is refused.
  if (found.amx_int8) found.amx_int8 = may_use_amx() || kAmxIsEmulated;
  found.amx_bf16 = found.amx_bf16 && found.amx_int8;
#endif
  return found;
}

// CPUs of a group by its folder: cpu.max of version 2 ("max 100000" for no quota), or the two files of version 1; 0 for
// no quota.
double quota_of(const std::string& folder) {
  double quota = 0, period = 0;
  if (std::ifstream file(folder + "/cpu.max"); file >> quota >> period) return period > 0 ? quota / period : 0;
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

double control_group_cpus(const std::string& membership, const std::string& mount) {
  double least = 0;
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {  // "0::/path", or "4:cpu,cpuacct:/path" in version 1
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers != ",," && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string root = mount + (controllers == ",," ? "" : "/cpu");
    // Inside a container the path may be the host's, of which only the root is there.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (const double quota = quota_of(root + path); quota > 0 && (least == 0 || quota < least)) least = quota;
      if (path.empty() || path.rfind('/') == std::string::npos) break;
    }
  }
  return least;
}

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
  if (features.amx_int8) names.push_back("amx");
  if (features.amx_bf16) names.push_back("amxbf16");
  if (features.neon) names.push_back("neon");
  if (features.dotprod) names.push_back("dotprod");
  if (features.i8mm) names.push_back("i8mm");
  return names;
}

int available_cpus() {
#if defined(__linux__)
  cpu_set_t allowed;
  int cpus = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
  if (cpus < 1) cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const double quota = control_group_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
  return quota > 0 ? std::min(cpus, std::max(1, static_cast<int>(std::ceil(quota)))) : cpus;
#else
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#endif
}

}  // namespace qcore
