// Tables as lines: every entry is the code.

#include "recurrent/cuda/tables/line_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda_runtime.h"
#include "recurrent/cuda/device_lanes.cuh"

namespace qcore {
namespace {

void expect_codes(const std::vector<std::int32_t>& codes, int shift) {
  const LineTable table = make_lines(codes);
  EXPECT_EQ(table.shift, shift);
  ASSERT_EQ(table.lines.size(), (codes.size() + (std::size_t{1} << shift) - 1) >> shift);
  for (std::size_t i = 0; i < codes.size(); ++i)
    ASSERT_EQ(line_entry(table.lines[i >> shift], static_cast<std::int32_t>(i), shift), codes[i]) << i;
}

template <class Function>
std::vector<std::int32_t> codes_of(int count, double unit, int exponent, const Function& function) {
  std::vector<std::int32_t> codes;
  for (int i = 0; i < count; ++i)
    codes.push_back(
        static_cast<std::int32_t>(std::floor(std::ldexp(function((i - count / 2) * unit), exponent) + 0.5)));
  return codes;
}

const auto kTanh = [](double x) { return std::tanh(x); };
const auto kSigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };

TEST(LineTables, SmoothFunctionsOfManyEntries) {
  for (const double unit : {std::ldexp(1, -12), std::ldexp(1, -14), std::ldexp(1, -15)})
    for (const int exponent : {7, 8}) {
      expect_codes(codes_of(65536, unit, exponent, kTanh), 5);
      expect_codes(codes_of(65536, unit, exponent, kSigmoid), 5);
    }
  expect_codes(codes_of(65536, std::ldexp(1, -14), 15, kTanh), 5);
  expect_codes(codes_of(65536, std::ldexp(1, -14), 16, kSigmoid), 5);
  expect_codes(codes_of(65535, std::ldexp(1, -14), 15, kTanh), 5);  // the last line is short
}

TEST(LineTables, FunctionsThatAreNotSmooth) {
  std::vector<std::int32_t> steep;
  for (int i = 0; i < 256; ++i) steep.push_back(i * 7919 % 65536);
  expect_codes(steep, 1);  // there is a line through each two entries
  for (std::int32_t& code : steep) code -= 32768;
  expect_codes(steep, 1);
  std::vector<std::int32_t> pairs;
  for (int i = 0; i < 64; ++i) pairs.push_back(i % 2 ? 65535 : 0);
  expect_codes(pairs, 1);
  expect_codes({-3}, 5);
  expect_codes({5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0, -1}, 5);
  expect_codes({5, 5, 5, 4, 3, 3, 2, 1, 0, -1}, 2);
}

}  // namespace
}  // namespace qcore
