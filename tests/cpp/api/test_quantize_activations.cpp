#include <cmath>
#include <limits>

#include "support.h"

namespace qcore::test {
namespace {

struct Activations {
  std::vector<int> codes;
  std::vector<float> scales, offsets;
  std::vector<std::int32_t> sums;
};

Activations quantized(const std::vector<float>& x, std::int64_t m, std::int64_t k, std::int64_t block,
                      ComputeMode mode) {
  const std::int64_t blocks = (k + block - 1) / block;
  Guarded<std::int8_t> bytes(m * k);
  Guarded<std::int16_t> words(m * k);
  Activations result{
      {}, std::vector<float>(m * blocks), std::vector<float>(m * blocks), std::vector<std::int32_t>(m * blocks)};
  const bool wide = mode == ComputeMode::int16;
  QuantizedActivations y;
  y.codes = wide ? TensorView(words.data(), DType::i16, {m, k}) : TensorView(bytes.data(), DType::i8, {m, k});
  y.scales = TensorView(result.scales.data(), DType::f32, {m, blocks});
  if (mode == ComputeMode::int8_asym) y.offsets = TensorView(result.offsets.data(), DType::f32, {m, blocks});
  y.block_size = block;
  y.mode = mode;
  quantize_activations(TensorView(x.data(), DType::f32, {m, k}), y);
  EXPECT_TRUE(bytes.guards_intact() && words.guards_intact());
  for (std::int64_t i = 0; i < m * k; ++i) {
    result.codes.push_back(wide ? words[i] : bytes[i]);
    result.sums[i / k * blocks + i % k / block] += result.codes.back();
  }
  return result;
}

class Modes : public ::testing::TestWithParam<ComputeMode> {};

INSTANTIATE_TEST_SUITE_P(QuantizeActivations, Modes,
                         ::testing::Values(ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16));

TEST_P(Modes, CodesScalesAndSumsBelongTogether) {
  const std::int64_t m = 4, k = 101, block = 32, blocks = 4;
  const auto x = normal_values(m * k, 6);
  const Activations result = quantized(x, m, k, block, GetParam());
  const int highest = GetParam() == ComputeMode::int16 ? 32767 : 127;
  const int lowest = GetParam() == ComputeMode::int8_asym ? -128 : -highest;
  for (std::int64_t row = 0; row < m; ++row)
    for (std::int64_t p = 0; p < blocks; ++p) {
      const std::int64_t at = row * blocks + p;
      int sum = 0, largest = lowest, smallest = highest;
      for (std::int64_t i = p * block; i < std::min(k, (p + 1) * block); ++i) {
        const int code = result.codes[row * k + i];
        sum += code;
        largest = std::max(largest, code);
        smallest = std::min(smallest, code);
        const double restored = static_cast<double>(result.scales[at]) * code + result.offsets[at];
        EXPECT_NEAR(restored, x[row * k + i], 0.51 * result.scales[at]);
      }
      EXPECT_EQ(result.sums[at], sum);
      if (GetParam() == ComputeMode::int8_asym) {
        EXPECT_EQ(smallest, lowest);
        EXPECT_EQ(largest, highest);
      } else {
        EXPECT_EQ(std::max(largest, -smallest), highest);
        EXPECT_EQ(result.offsets[at], 0.0f);
      }
    }
}

TEST_P(Modes, NonFiniteBlocksArePoisoned) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    auto x = normal_values(64, 7);
    x[5] = bad;
    const Activations result = quantized(x, 1, 64, 32, GetParam());
    EXPECT_TRUE(std::isnan(result.scales[0]));
    EXPECT_TRUE(std::isfinite(result.scales[1]));
    for (int i = 0; i < 32; ++i) EXPECT_EQ(result.codes[i], 0);
    EXPECT_EQ(result.sums[0], 0);
  }
}

TEST_P(Modes, ZeroBlocksHaveZeroCodes) {
  const Activations result = quantized(std::vector<float>(32, 0.0f), 1, 32, 32, GetParam());
  for (int code : result.codes) EXPECT_EQ(code, 0);
  EXPECT_EQ(result.offsets[0], 0.0f);
}

}  // namespace
}  // namespace qcore::test
