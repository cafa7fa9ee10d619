#pragma once

#include <string>

namespace qcore {

// Instruction sets that CPU kernels may use: detected once, then capped by the environment variable
// QCORE_ISA = baseline | generic128 | avx2 | avxvnni | avx512vnni | amx on x86-64, baseline | generic128 | neon |
// dotprod | i8mm on AArch64, baseline | generic128 elsewhere.
struct CpuFeatures {
  bool avx2;        // AVX2, FMA and F16C
  bool avxvnni;     // the above and AVX-VNNI
  bool avx512vnni;  // AVX-512 F, BW, DQ, VL and VNNI, and the avx2 group
  bool avx512bf16;  // the above and AVX-512 BF16; capped with avx512vnni
  bool amx_int8;    // AMX-TILE and AMX-INT8, which the system lets this process use, and the avx512vnni group
  bool amx_bf16;    // the above and AMX-BF16; capped with amx
  bool neon;        // Advanced SIMD of AArch64, which every such processor has
  bool dotprod;     // the above and its dot products of bytes
  bool i8mm;        // the above and those of unsigned by signed bytes
  bool generic128;  // what the compiler makes of vectors of 128 bits; all but baseline
};

const CpuFeatures& cpu_features_in_use();

// CPUs that the quotas of this process's control group and of those above it allow together, the smallest of them; 0
// for no quota. `membership` is the process's file of groups (/proc/self/cgroup), `mount` the folder of the groups
// (/sys/fs/cgroup); tests have their own.
double control_group_cpus(const std::string& membership, const std::string& mount);

}  // namespace qcore
