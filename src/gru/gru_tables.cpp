#include "gru/gru_tables.h"

#include <algorithm>
#include <cmath>

namespace qcore {
namespace {

// In long double: 64 bits of mantissa on x86, so that no rounding of the function itself can move a code of 16 bits
// over the middle between two others, whatever C library computes it.
template <class Function>
std::vector<std::int32_t> table_of(const FixedFormat& from, const FixedFormat& to, const Function& function) {
  std::vector<std::int32_t> table;
  for (std::int32_t code = from.lowest(); code <= from.highest(); ++code) {
    const long double x = std::ldexp(static_cast<long double>(code - from.zero_point), -from.exponent);
    const long double scaled = std::nearbyint(std::ldexp(function(x), to.exponent)) + to.zero_point;
    const long double lowest = to.lowest(), highest = to.highest();
    table.push_back(static_cast<std::int32_t>(std::clamp(scaled, lowest, highest)));
  }
  return table;
}

}  // namespace

std::vector<std::int32_t> sigmoid_table(const FixedFormat& from, const FixedFormat& to) {
  return table_of(from, to, [](long double x) { return 1.0L / (1.0L + std::exp(-x)); });
}

std::vector<std::int32_t> tanh_table(const FixedFormat& from, const FixedFormat& to) {
  return table_of(from, to, [](long double x) { return std::tanh(x); });
}

}  // namespace qcore
