#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "numerics/activation.h"
#include "numerics/activation_block.h"
#include "numerics/block_product.h"
#include "numerics/block_scale.h"

namespace qcore::numerics {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();

TEST(SymmetricScale, LargestMagnitudeGetsTheLargestCode) {
  for (const int bits : {4, 8, 16})
    for (const float magnitude : {1e-30f, 0.7f, 1.0f, 3e38f}) {
      const BlockScale block = symmetric_scale(magnitude_bits(-magnitude), bits);
      EXPECT_EQ(block.scale, magnitude / static_cast<float>(code_max(bits)));
      EXPECT_EQ(block.offset, 0.0f);
      EXPECT_EQ(encode(magnitude, block, -code_max(bits), code_max(bits)), code_max(bits));
      EXPECT_EQ(encode(-magnitude, block, -code_max(bits), code_max(bits)), -code_max(bits));
    }
}

TEST(SymmetricScale, BlocksWithoutAnInverseAreZero) {
  for (const float magnitude : {0.0f, -0.0f, kTiny, 1e-40f}) {
    const BlockScale block = symmetric_scale(magnitude_bits(magnitude), 8);
    EXPECT_EQ(block.scale, 0.0f);
    EXPECT_EQ(encode(magnitude, block, -127, 127), 0);
  }
}

TEST(SymmetricScale, NonFiniteBlocksArePoisoned) {
  for (const float bad : {kNaN, -kNaN, kInfinity, -kInfinity}) {
    const BlockScale block = symmetric_scale(magnitude_bits(bad), 8);
    EXPECT_TRUE(std::isnan(block.scale));
    EXPECT_EQ(encode(bad, block, -127, 127), 0);
    EXPECT_EQ(encode(1.0f, block, -127, 127), 0);
  }
}

TEST(MagnitudeBits, OrderIsMagnitudeOrder) {
  const float ascending[] = {-0.0f, kTiny, -1e-38f, 1.0f, -2.0f, 3e38f, kInfinity, kNaN};
  for (std::size_t i = 1; i < std::size(ascending); ++i)
    EXPECT_LT(magnitude_bits(ascending[i - 1]), magnitude_bits(ascending[i])) << i;
}

TEST(AsymmetricScale, EndsGetTheEndsOfTheCodes) {
  for (const int bits : {4, 8})
    for (const auto& [lo, hi] :
         {std::pair(-1.0f, 2.0f), {0.0f, 1.0f}, {-5.0f, -4.0f}, {-3e38f, 3e38f}, {1e-20f, 2e-20f}}) {
      const BlockScale block = asymmetric_weight_scale(lo, hi, bits);
      EXPECT_EQ(encode(lo, block, -code_max(bits) - 1, code_max(bits)), -code_max(bits) - 1) << lo;
      EXPECT_EQ(encode(hi, block, -code_max(bits) - 1, code_max(bits)), code_max(bits)) << hi;
      EXPECT_TRUE(std::isfinite(block.scale) && std::isfinite(block.offset));
    }
}

TEST(AsymmetricScale, ConstantBlocksAreExact) {
  for (const float value : {0.0f, 0.1f, -7.0f, 3e38f, kTiny}) {
    for (const BlockScale& block : {asymmetric_weight_scale(value, value, 4),
                                    asymmetric_activation_scale(value, value, magnitude_bits(value), 8)}) {
      const int code = encode(value, block, -8, 7);
      EXPECT_EQ(code, 0);
      EXPECT_EQ(decode(code, block.scale, block.offset), value);
    }
  }
  EXPECT_FALSE(std::signbit(constant_block(-0.0f).offset));
}

TEST(AsymmetricScale, TooNarrowBlocks) {
  const BlockScale weight = asymmetric_weight_scale(0.0f, kTiny, 4);
  EXPECT_EQ(weight.offset, kTiny);
  EXPECT_EQ(weight.scale, 1.0f);
  const BlockScale activation = asymmetric_activation_scale(0.0f, kTiny, magnitude_bits(kTiny), 8);
  EXPECT_EQ(activation.scale, 0.0f);
  EXPECT_EQ(activation.offset, 0.0f);
  EXPECT_TRUE(std::isnan(asymmetric_activation_scale(0.0f, kInfinity, magnitude_bits(kInfinity), 8).scale));
}

TEST(Encode, RoundsHalfToEvenAndSaturates) {
  const BlockScale unit{1.0f, 1.0f, 0.0f};
  const std::pair<float, int> known[] = {{0.5f, 0},   {1.5f, 2},   {2.5f, 2},    {-0.5f, 0},    {-1.5f, -2},
                                         {-2.5f, -2}, {7.4f, 7},   {7.5f, 7},    {1e30f, 7},    {-1e30f, -8},
                                         {6.5f, 6},   {-7.5f, -8}, {0.4999f, 0}, {kInfinity, 7}};
  for (const auto& [value, code] : known) EXPECT_EQ(encode(value, unit, -8, 7), code) << value;
}

TEST(ActivationBlock, ModesHaveTheirRanges) {
  const std::vector<float> values = {0.25f, -1.0f, 0.5f, 2.0f};
  const auto codes = [&](int mode) {
    const BlockScale scale = activation_scale_of(values.data(), 4, mode);
    std::vector<int> result;
    for (float value : values) result.push_back(activation_code(value, scale, mode));
    return result;
  };
  EXPECT_EQ(codes(kActivationInt8), (std::vector<int>{16, -64, 32, 127}));
  EXPECT_EQ(codes(kActivationInt8Asym).front(), -22);
  EXPECT_EQ(codes(kActivationInt8Asym)[1], -128);
  EXPECT_EQ(codes(kActivationInt8Asym)[3], 127);
  EXPECT_EQ(codes(kActivationInt16), (std::vector<int>{4096, -16384, 8192, 32767}));
}

// The three terms together are the product of what the codes stand for.
TEST(BlockProduct, EqualsTheProductOfDecodedValues) {
  const float scale_a = 0.03f, offset_a = 0.7f, scale_b = 0.2f, offset_b = -1.1f;
  const int a[] = {3, -128, 127, 5, -60}, b[] = {-8, 7, 2, 0, -3};
  std::int64_t acc = 0, sum_a = 0, sum_b = 0;
  double exact = 0;
  for (int i = 0; i < 5; ++i) {
    acc += a[i] * b[i];
    sum_a += a[i];
    sum_b += b[i];
    exact += (double(scale_a) * a[i] + offset_a) * (double(scale_b) * b[i] + offset_b);
  }
  float y = add_product(0.0f, acc, scale_a, scale_b);
  y = add_weight_offset(y, scale_a * static_cast<float>(sum_a), offset_b);
  y = add_activation_offset(y, offset_a, block_weight_sum(sum_b, 5, scale_b, offset_b));
  EXPECT_NEAR(y, exact, 1e-5);
}

TEST(FusedActivation, ClampKeepsNaN) {
  EXPECT_TRUE(std::isnan(clamp_keep_nan(kNaN, 0.0f, 1.0f)));
  EXPECT_EQ(clamp_keep_nan(-2.0f, -1.0f, 1.0f), -1.0f);
  EXPECT_EQ(clamp_keep_nan(kInfinity, -1.0f, 1.0f), 1.0f);
  EXPECT_EQ(clamp_keep_nan(5.0f, 0.0f, kInfinity), 5.0f);
}

TEST(FusedActivation, QuotientsHaveTheBitsOfTheirFunctions) {
  using L = ScalarLanes;
  std::vector<float> values = {0.0f, -0.0f, 1e-45f, 0.625f, -0.625f, 32.0f, -32.0f, 3e38f, -3e38f};
  values.insert(values.end(), {kInfinity, -kInfinity, kNaN});
  // Every 4,099th float, of all signs and exponents.
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 4099)
    values.push_back(bits_float(static_cast<std::uint32_t>(bits)));
  for (const float x : values) {
    const float tanh_y = quotient_activation(x, kQuotientTanh);
    const float sigmoid_y = quotient_activation(x, kQuotientSigmoid);
    const float gelu_y = quotient_activation(x, kQuotientGeluTanh);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(tanh_y) && std::isnan(sigmoid_y) && std::isnan(gelu_y));
      continue;
    }
    EXPECT_EQ(float_bits(tanh_y), float_bits(tanh<L>(x))) << x;
    EXPECT_EQ(float_bits(sigmoid_y), float_bits(times_logistic<L>(1.0f, x))) << x;
    EXPECT_EQ(float_bits(gelu_y), float_bits(gelu_tanh_lanes<L>(x))) << x;
  }
}

}  // namespace
}  // namespace qcore::numerics
