#include "recurrent/gate_tables.h"

#include <algorithm>
#include <cmath>

#include "recurrent/interp.h"
#include "runtime/check.h"

namespace qcore {
namespace {

// A double decides which code is nearest unless it lies this close to the middle between two: far more than the error
// of any C library's exp and tanh at the largest exponent, 2^30.
constexpr double kUndecided = 1e-4;

// Whatever C library computes the function, the code is the correctly rounded one: what a double leaves undecided,
// long double's 64 bits of mantissa on x86 decide.
template <class Function>
std::vector<std::int32_t> table_of(const FixedFormat& from, const FixedFormat& to, const Function& function) {
  std::vector<std::int32_t> table;
  table.reserve(std::size_t{1} << from.bits);
  const double from_scale = std::ldexp(1.0, -from.exponent), to_scale = std::ldexp(1.0, to.exponent);
  const double lowest = to.lowest() - to.zero_point, highest = to.highest() - to.zero_point;
  for (std::int32_t code = from.lowest(); code <= from.highest(); ++code) {
    const double x = (code - from.zero_point) * from_scale;
    double scaled = std::clamp(function(x) * to_scale, lowest - 1, highest + 1);
    if (std::abs(scaled - std::floor(scaled) - 0.5) < kUndecided)
      scaled = static_cast<double>(std::nearbyint(std::ldexp(function(static_cast<long double>(x)), to.exponent)));
    table.push_back(static_cast<std::int32_t>(std::clamp(std::nearbyint(scaled), lowest, highest)) + to.zero_point);
  }
  return table;
}

}  // namespace

std::vector<std::int32_t> sigmoid_table(const FixedFormat& from, const FixedFormat& to) {
  return table_of(from, to, [](auto x) { return 1 / (1 + std::exp(-x)); });
}

std::vector<std::int32_t> tanh_table(const FixedFormat& from, const FixedFormat& to) {
  return table_of(from, to, [](auto x) { return std::tanh(x); });
}

std::vector<std::int32_t> gate_table(const char* op, const char* gate, std::vector<std::int32_t> exact,
                                     const FixedFormat& argument, TableKind kind, TableKnots& knots) {
  if (kind == TableKind::exact || argument.bits <= 8) return exact;
  knots = interp_knots(exact);
  std::vector<std::int32_t> expanded = expand_knots(knots);
  const std::int32_t error = largest_difference(expanded, exact);
  QCORE_CHECK_VALUE(error <= kMaxInterpError, op, ": the interpolated table of ", gate, " is ", error,
                    " codes beside the exact one, expected at most ", kMaxInterpError, ": use exact tables");
  return expanded;
}

}  // namespace qcore
