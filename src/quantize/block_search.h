#pragma once

#include <cstdint>

#include "numerics/block_scale.h"
#include "qcore/quantize.h"

namespace qcore {

// The codes' range: rounding to nearest leaves a symmetric block's lowest code unused; a search may use it, and give it
// to the block's largest value of either sign by a negative scale.
inline int lowest_code(const QuantizeOptions& options) {
  const int highest = numerics::code_max(options.bits);
  return options.scheme == Scheme::symmetric && options.method == Method::rtn ? -highest : -highest - 1;
}

// Parameters of one block of finite values [count], by Method::rtn or Method::mse.
numerics::BlockScale choose_block_scale(const float* values, std::int64_t count, const QuantizeOptions& options);

}  // namespace qcore
