#pragma once

#include <cstdint>

// Declares what an instruction set provides for the Hadamard transform. Included by files for one instruction set.
namespace qcore {

struct HadamardKernels {
  // Transforms each `block` of values [count] in place, factor included.
  void (*transform)(float* values, std::int64_t count, std::int64_t block);
  // fp16 or bf16 [count] to fp32, and back.
  void (*load)(const void* from, bool bfloat, std::int64_t count, float* values);
  void (*store)(const float* values, std::int64_t count, bool bfloat, void* to);
};

extern const HadamardKernels kHadamardAvx2;
extern const HadamardKernels kHadamardAvx512;
extern const HadamardKernels kHadamardNeon;
extern const HadamardKernels kHadamardGeneric128;

}  // namespace qcore
