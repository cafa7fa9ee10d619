#pragma once

#include "qcore/tensor_view.h"
#include "runtime/cpu_features.h"

#if defined(QCORE_CUDA_BACKEND)
#include "runtime/cuda/cuda_device.h"
#endif

// Names what kernels need of a machine, once for the tables of all operators.
#if defined(QCORE_X86_KERNELS) || defined(QCORE_ARM_KERNELS) || defined(QCORE_GENERIC_KERNELS)
#define QCORE_VECTOR_KERNELS
#endif

namespace qcore {

struct Requirement {
  DeviceType device;
  const char* text;  // what users read in qcore.kernels()
  bool (*met)();     // by this machine, after QCORE_ISA
};

inline constexpr Requirement kNoRequirement{DeviceType::cpu, "nothing", [] { return true; }};

#if defined(QCORE_X86_KERNELS)
inline constexpr Requirement kAvx2{DeviceType::cpu, "AVX2, FMA and F16C", [] { return cpu_features_in_use().avx2; }};
inline constexpr Requirement kAvxVnni{DeviceType::cpu, "AVX-VNNI, AVX2, FMA and F16C",
                                      [] { return cpu_features_in_use().avxvnni; }};
inline constexpr Requirement kAvx512Vnni{DeviceType::cpu, "AVX-512 F, BW, DQ, VL and VNNI",
                                         [] { return cpu_features_in_use().avx512vnni; }};
inline constexpr Requirement kAmxInt8{DeviceType::cpu,
                                      "AMX-INT8 with the system's permission, AVX-512 F, BW, DQ, VL and VNNI",
                                      [] { return cpu_features_in_use().amx_int8; }};
inline constexpr Requirement kAmxBf16{DeviceType::cpu,
                                      "AMX-BF16, AMX-INT8 with the system's permission, AVX-512 F, BW, DQ, VL and VNNI",
                                      [] { return cpu_features_in_use().amx_bf16; }};
inline constexpr Requirement kAvx512Bf16{DeviceType::cpu, "AVX-512 F, BW, DQ, VL, VNNI and BF16",
                                         [] { return cpu_features_in_use().avx512bf16; }};
#endif

#if defined(QCORE_ARM_KERNELS)
inline constexpr Requirement kNeon{DeviceType::cpu, "NEON", [] { return cpu_features_in_use().neon; }};
inline constexpr Requirement kNeonDotprod{DeviceType::cpu, "NEON and its dot products (FEAT_DotProd)",
                                          [] { return cpu_features_in_use().dotprod; }};
inline constexpr Requirement kNeonI8mm{DeviceType::cpu, "NEON, FEAT_DotProd and FEAT_I8MM",
                                       [] { return cpu_features_in_use().i8mm; }};
#endif

#if defined(QCORE_GENERIC_KERNELS)
inline constexpr Requirement kGeneric128{DeviceType::cpu, "nothing: vectors of the compiler",
                                         [] { return cpu_features_in_use().generic128; }};
#endif

#if defined(QCORE_CUDA_BACKEND)
// There is a device: whether it is of the capability is the kernel's unsupported_reason(), because a machine may have
// several devices.
inline constexpr Requirement kCuda75{DeviceType::cuda, "a CUDA device of compute capability 7.5 or higher",
                                     [] { return cuda_available(); }};
inline constexpr Requirement kCuda80{DeviceType::cuda, "a CUDA device of compute capability 8.0 or higher",
                                     [] { return cuda_available(); }};
inline constexpr Requirement kCuda90{DeviceType::cuda, "a CUDA device of compute capability 9.0",
                                     [] { return cuda_available(); }};
#endif

// The unsupported_reason() of a kernel that takes every problem on the CPU.
template <class Problem>
const char* cpu_unsupported_reason(const Problem& problem) {
  return problem.device.type == DeviceType::cpu ? nullptr : "it runs on the CPU";
}

}  // namespace qcore
