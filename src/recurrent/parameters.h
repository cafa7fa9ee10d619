#pragma once

#include <cstdint>
#include <vector>

#include "numerics/recurrent/lanes.h"
#include "qcore/recurrent/fixed_format.h"

// Checks of the parameters of recurrent layers, and what follows from them for every product. Errors begin with `op`.
namespace qcore {

constexpr int kMaxExponent = 126;

// `zero_free`: a zero point other than 0 is allowed.
void check_format(const char* op, const char* tensor, const FixedFormat& format, bool zero_free);

void check_sizes(const char* op, std::int64_t input_size, std::int64_t hidden_size, int weight_bits, int bias_bits);

void check_weights(const char* op, const char* name, const std::vector<std::int16_t>& codes, int bits,
                   std::int64_t expected);
void check_biases(const char* op, const char* name, const std::vector<std::int32_t>& codes, int bits,
                  std::int64_t expected);
void check_exponents(const char* op, const char* name, const std::vector<std::int32_t>& exponents,
                     std::int64_t expected);

// A shift by `from - to` of a number of at most `largest`: within int64 if to the left, else small enough that it does
// not drop more than int64 has. Throws ValueError otherwise.
int checked_shift(const char* op, const char* what, int from, int to, std::int64_t largest);

inline numerics::CodeRange range_of(const FixedFormat& f) {
  return {f.lowest() - f.zero_point, f.highest() - f.zero_point};
}

// The largest distance of a code from the zero point.
std::int64_t reach(const FixedFormat& f);

// A value times 2^(to - from), rounded.
std::int64_t rounded(const char* op, const char* what, ShiftRounding rounding, std::int32_t value, int from, int to);

// One of a layer's two products; row n of weights has exponent exponents[n].
struct ProductParameters {
  const char *op, *name;  // for errors
  ShiftRounding rounding;
  const std::vector<std::int16_t>& weights;
  const std::vector<std::int32_t>& exponents;
  std::int64_t features;
  const FixedFormat &input, &output;
  const std::vector<std::int32_t>*bias, *bias_exponents;  // added to the sums before they are shifted; null for none
};

// The offset that is added to each row's sum, the shift to the right that follows, and the largest sum there can be.
struct PreparedProduct {
  std::vector<std::int64_t> offsets;
  std::vector<int> shifts;
  std::int64_t largest = 0;
};

PreparedProduct prepare_product(const ProductParameters& parameters);

}  // namespace qcore
