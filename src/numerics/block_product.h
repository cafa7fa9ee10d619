#pragma once

#include "numerics/portable.h"

// How one block's integers enter a float result; the order of these steps, block after block, is the definition,
// and every CPU kernel reproduces it bit for bit.
//
//   sum over k of (sA*qa + oA) * (sB*qb + oB) = sA*sB*acc + sA*oB*sumA + oA*(sB*sumB + g*oB)
namespace qcore::numerics {

// sB*sumB + g*oB: the sum of the block's dequantized weights, once per weight.
QCORE_NUMERIC float block_weight_sum(std::int64_t code_sum, std::int64_t valid, float scale, float offset) {
  return fma_once(scale, static_cast<float>(code_sum), static_cast<float>(valid) * offset);
}

QCORE_NUMERIC float add_product(float y, std::int64_t acc, float scale_a, float scale_b) {
  return fma_once(static_cast<float>(acc), scale_a * scale_b, y);
}

// Likewise with the sum as a float already: static_cast<float>(acc).
QCORE_NUMERIC float add_float_product(float y, float acc, float scale_a, float scale_b) {
  return fma_once(acc, scale_a * scale_b, y);
}

// Only for weights with offsets. `scaled_sum_a` is sA * float(sumA), rounded once per row and block.
QCORE_NUMERIC float add_weight_offset(float y, float scaled_sum_a, float offset_b) {
  return fma_once(scaled_sum_a, offset_b, y);
}

// Only for activations with offsets.
QCORE_NUMERIC float add_activation_offset(float y, float offset_a, float weight_sum) {
  return fma_once(offset_a, weight_sum, y);
}

}  // namespace qcore::numerics
