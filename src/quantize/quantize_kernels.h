#pragma once

#include "numerics/block_scale.h"

// What an instruction set provides for rounding to nearest. Included by files for one instruction set.
namespace qcore {

struct NearestForm {
  int bits;
  bool symmetric, half;  // scale and offset rounded to fp16
  int lowest;            // code
};

struct QuantizeKernels {
  // fp16 or bf16 [count] to fp32.
  void (*load)(const void* x, bool bfloat, std::int64_t count, float* values);
  // The parameters of finite values [count], and their codes.
  numerics::BlockScale (*quantize_block)(const float* values, std::int64_t count, const NearestForm& form,
                                         std::int8_t* codes);
};

extern const QuantizeKernels kQuantizeAvx2;

}  // namespace qcore
