#pragma once

#include "numerics/portable.h"

namespace qcore::numerics {

// A straight line between two knots 2^shift codes apart, `offset` codes behind the first, rounded half up. For values
// that do not fall (0 <= second - first < 2^16) and shift <= 15 everything stays within 31 bits; the result does not
// fall either, from `first` at offset 0.
QCORE_NUMERIC std::int32_t interpolate(std::int32_t first, std::int32_t second, std::int32_t offset, int shift) {
  return first + (((second - first) * offset + ((std::int32_t{1} << shift) >> 1)) >> shift);
}

}  // namespace qcore::numerics
