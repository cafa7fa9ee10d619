#pragma once

#include "formats/activate.h"
#include "formats/element.h"
#include "gemm/product.h"

namespace qcore {

// Applies bias and activation to one fp32 result of linear or conv2d and stores it `at` elements from y's data, rounded
// once: the definition for every CPU kernel.
inline void store_result(const BlockProduct& product, std::int64_t at, std::int64_t channel, float y) {
  const TensorView& bias = product.bias;
  if (bias.rank) y += load_float(bias.data, bias.dtype, channel * bias.strides[0]);
  store_float(const_cast<void*>(product.y.data), product.y.dtype, at, activate(y, product.activation));
}

}  // namespace qcore
