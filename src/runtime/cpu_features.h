#pragma once

namespace qcore {

// Instruction sets that CPU kernels may use: detected once, then capped by the environment variable
// QCORE_ISA = baseline | avx2 | avxvnni | avx512vnni.
struct CpuFeatures {
  bool avx2;        // AVX2, FMA and F16C
  bool avxvnni;     // the above and AVX-VNNI
  bool avx512vnni;  // AVX-512 F, BW, DQ, VL and VNNI, and the avx2 group
  bool avx512bf16;  // the above and AVX-512 BF16; capped with avx512vnni
};

const CpuFeatures& cpu_features_in_use();

}  // namespace qcore
