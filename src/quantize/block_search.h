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

// One block of finite values [count]; importance [count] is what each one's error counts, null for all alike.
struct BlockValues {
  const float* values;
  const float* importance;
  std::int64_t count;
};

// The block's parameters by options.method.
numerics::BlockScale choose_block_scale(const BlockValues& block, const QuantizeOptions& options);

}  // namespace qcore
