#pragma once

#include "formats/activate.h"
#include "formats/element.h"
#include "gemm/product.h"

namespace qcore {

// Applies bias and activation to one fp32 result, the product with a row of the weight, and stores it `at` elements
// from y's data, rounded once: the definition for every CPU kernel.
inline void store_result(const BlockProduct& product, std::int64_t at, std::int64_t row, float y) {
  const TensorView& bias = product.bias;
  if (bias.rank) y += load_float(bias.data, bias.dtype, product.bias_place(row));
  store_float(const_cast<void*>(product.y.data), product.y.dtype, at, activate(y, product.activation));
}

}  // namespace qcore
