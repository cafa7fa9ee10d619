#include "recurrent/parameters.h"

#include <algorithm>
#include <cmath>

#include "runtime/check.h"

namespace qcore {
namespace {

// Beyond that, a shift drops every bit of every product there can be, or leaves int64.
constexpr int kMaxShift = 62;

template <class Integer>
void check_array(const char* op, const char* name, const std::vector<Integer>& codes, int bits, std::int64_t expected) {
  QCORE_CHECK_VALUE(static_cast<std::int64_t>(codes.size()) == expected, op, ": ", name, " has ", codes.size(),
                    " elements, expected ", expected);
  const std::int64_t highest = (std::int64_t{1} << (bits - 1)) - 1;
  for (std::size_t i = 0; i < codes.size(); ++i)
    QCORE_CHECK_VALUE(codes[i] >= -highest - 1 && codes[i] <= highest, op, ": ", name, "[", i, "] is ", codes[i],
                      ", expected a code of ", bits, " bits");
}

}  // namespace

void check_format(const char* op, const char* tensor, const FixedFormat& format, bool zero_free) {
  QCORE_CHECK_VALUE(format.bits >= 2 && format.bits <= 16, op, ": format of ", tensor, " has ", format.bits,
                    " bits, expected 2 to 16");
  QCORE_CHECK_VALUE(std::abs(format.exponent) <= kMaxExponent, op, ": format of ", tensor, " has exponent ",
                    format.exponent, ", expected -126 to 126");
  QCORE_CHECK_VALUE(format.zero_point >= format.lowest() && format.zero_point <= format.highest(), op, ": format of ",
                    tensor, " has zero point ", format.zero_point, ", expected ", format.lowest(), " to ",
                    format.highest(), " so that 0 can be represented");
  QCORE_CHECK_VALUE(zero_free || format.zero_point == 0, op, ": format of ", tensor, " has zero point ",
                    format.zero_point, ", expected 0");
}

void check_sizes(const char* op, std::int64_t input_size, std::int64_t hidden_size, int weight_bits, int bias_bits) {
  QCORE_CHECK_VALUE(input_size >= 1 && input_size <= 1 << 20, op, ": input_size is ", input_size, ", expected 1 to ",
                    1 << 20);
  QCORE_CHECK_VALUE(hidden_size >= 1 && hidden_size <= 1 << 20, op, ": hidden_size is ", hidden_size,
                    ", expected 1 to ", 1 << 20);
  QCORE_CHECK_VALUE(weight_bits >= 2 && weight_bits <= 16, op, ": weight_bits is ", weight_bits, ", expected 2 to 16");
  QCORE_CHECK_VALUE(bias_bits >= 2 && bias_bits <= 32, op, ": bias_bits is ", bias_bits, ", expected 2 to 32");
}

void check_weights(const char* op, const char* name, const std::vector<std::int16_t>& codes, int bits,
                   std::int64_t expected) {
  check_array(op, name, codes, bits, expected);
}

void check_biases(const char* op, const char* name, const std::vector<std::int32_t>& codes, int bits,
                  std::int64_t expected) {
  check_array(op, name, codes, bits, expected);
}

void check_exponents(const char* op, const char* name, const std::vector<std::int32_t>& exponents,
                     std::int64_t expected) {
  QCORE_CHECK_VALUE(static_cast<std::int64_t>(exponents.size()) == expected, op, ": ", name, " has ", exponents.size(),
                    " elements, expected ", expected);
  for (std::size_t i = 0; i < exponents.size(); ++i)
    QCORE_CHECK_VALUE(std::abs(exponents[i]) <= kMaxExponent, op, ": ", name, "[", i, "] is ", exponents[i],
                      ", expected -126 to 126");
}

int checked_shift(const char* op, const char* what, int from, int to, std::int64_t largest) {
  const int shift = from - to;
  QCORE_CHECK_VALUE(shift <= kMaxShift, op, ": ", what, " is shifted right by ", shift, " (exponents ", from, " and ",
                    to, "), expected at most ", kMaxShift);
  const bool fits = shift >= 0 || (-shift <= 40 && largest <= (std::int64_t{1} << 60) >> -shift);
  QCORE_CHECK_VALUE(fits, op, ": ", what, " up to ", largest, " is shifted left by ", -shift, " (exponents ", from,
                    " and ", to, "), beyond 61 bits");
  return shift;
}

std::int64_t reach(const FixedFormat& f) {
  return std::max<std::int64_t>(f.highest() - f.zero_point, std::int64_t{f.zero_point} - f.lowest());
}

std::int64_t rounded(const char* op, const char* what, ShiftRounding rounding, std::int32_t value, int from, int to) {
  const int shift = checked_shift(op, what, from, to, std::abs(std::int64_t{value}));
  return rounding == ShiftRounding::half_away
             ? numerics::rounding_shift<numerics::ShiftRounding::half_away>(value, shift)
             : numerics::rounding_shift<numerics::ShiftRounding::half_even>(value, shift);
}

PreparedProduct prepare_product(const ProductParameters& p) {
  PreparedProduct made;
  for (std::size_t n = 0; n < p.exponents.size(); ++n) {
    std::int64_t sum = 0, magnitude = 0;
    for (std::int64_t k = 0; k < p.features; ++k) {
      const std::int64_t weight = p.weights[n * p.features + k];
      sum += weight;
      magnitude += std::abs(weight);
    }
    std::int64_t offset = -sum * p.input.zero_point;
    const int scale = p.exponents[n] + p.input.exponent;
    if (p.bias) offset += rounded(p.op, p.name, p.rounding, (*p.bias)[n], (*p.bias_exponents)[n], scale);
    const std::int64_t codes = std::max<std::int64_t>(-std::int64_t{p.input.lowest()}, p.input.highest());
    const std::int64_t bound = magnitude * codes + std::abs(offset);
    made.largest = std::max(made.largest, bound);
    made.offsets.push_back(offset);
    made.shifts.push_back(checked_shift(p.op, p.name, scale, p.output.exponent, bound));
  }
  return made;
}

}  // namespace qcore
