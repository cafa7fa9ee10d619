#pragma once

#include "numerics/portable.h"

// Where the taps of a convolution's window lie, along one axis.
namespace qcore::numerics {

struct WindowAxis {
  std::int64_t input = 1;   // elements
  std::int64_t kernel = 1;  // taps
  std::int64_t stride = 1;
  std::int64_t dilation = 1;  // from tap to tap, in elements
  std::int64_t before = 0;    // padding
  std::int64_t output = 1;    // results

  // The input element under a tap, or -1 in the padding.
  QCORE_INLINE constexpr std::int64_t at(std::int64_t result, std::int64_t tap) const {
    const std::int64_t place = result * stride + tap * dilation - before;
    return place >= 0 && place < input ? place : -1;
  }
};

}  // namespace qcore::numerics
