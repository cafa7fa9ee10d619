#pragma once

#include <cstdint>

#include "numerics/half_bits.h"

namespace qcore {

// Scales or offsets, one per row and block: fp32, or fp16 where that loses nothing.
struct BlockParameters {
  const void* data = nullptr;
  bool half = false;

  explicit operator bool() const { return data != nullptr; }
  std::int64_t item_size() const { return half ? 2 : 4; }
  float operator[](std::int64_t at) const {
    return half ? numerics::half_to_float(static_cast<const std::uint16_t*>(data)[at])
                : static_cast<const float*>(data)[at];
  }
};

}  // namespace qcore
