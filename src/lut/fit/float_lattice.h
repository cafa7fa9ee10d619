#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "numerics/half_bits.h"

// Table entries as integers: the values of fp16 or fp32 in their order, 0 for zero.
namespace qcore::lut_fit {

class Lattice {
 public:
  explicit Lattice(bool half) : half_(half), limit_(half ? 0x7bff : 0x477fe000) {}

  std::int64_t nearest(double value) const {
    const float x = static_cast<float>(std::min(std::max(value, -65504.0), 65504.0));
    const std::uint32_t magnitude = half_ ? numerics::float_to_half(std::fabs(x)) : numerics::float_bits(std::fabs(x));
    return x < 0 ? -static_cast<std::int64_t>(magnitude) : static_cast<std::int64_t>(magnitude);
  }

  double value(std::int64_t step) const {
    const auto magnitude = static_cast<std::uint32_t>(step < 0 ? -step : step);
    const float x =
        half_ ? numerics::half_to_float(static_cast<std::uint16_t>(magnitude)) : numerics::bits_float(magnitude);
    return step < 0 ? -x : x;
  }

  double round(double x) const { return value(nearest(x)); }
  std::int64_t clamp(std::int64_t step) const { return std::min(std::max(step, -limit_), limit_); }

  // Steps below which the search over cuts does not distinguish entries, and where the search over entries starts.
  std::int64_t quantum() const { return half_ ? 1 : 1 << 10; }
  std::int64_t coarsest() const { return half_ ? 64 : std::int64_t{64} << 13; }

 private:
  bool half_;
  std::int64_t limit_;
};

}  // namespace qcore::lut_fit
