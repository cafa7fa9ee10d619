#pragma once

#include <cstdint>

#include "numerics/block_scale.h"
#include "qcore/quantize.h"

namespace qcore {

// The codes' range: a symmetric block does not use the lowest code.
inline int lowest_code(Scheme scheme, int bits) {
  return scheme == Scheme::symmetric ? -numerics::code_max(bits) : -numerics::code_max(bits) - 1;
}

// Parameters of one block of finite values [count], by Method::rtn or Method::mse.
numerics::BlockScale choose_block_scale(const float* values, std::int64_t count, const QuantizeOptions& options);

}  // namespace qcore
