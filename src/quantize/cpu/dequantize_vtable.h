#pragma once

#include "numerics/block_scale.h"

// Declares what an instruction set provides for dequantizing. Included by files for one instruction set.
namespace qcore {

// numerics::decode of codes [count] with one scale and offset, to contiguous values.
struct DequantizeKernels {
  void (*to_float)(const std::int8_t* codes, std::int64_t count, float scale, float offset, float* y);
  void (*to_half)(const std::int8_t* codes, std::int64_t count, float scale, float offset, std::uint16_t* y);
  void (*to_bfloat)(const std::int8_t* codes, std::int64_t count, float scale, float offset, std::uint16_t* y);
};

extern const DequantizeKernels kDequantizeAvx2;
extern const DequantizeKernels kDequantizeNeon;
extern const DequantizeKernels kDequantizeGeneric128;

}  // namespace qcore
