#include <cmath>

#include "support.h"

namespace qcore::test {
namespace {

std::vector<float> rotated(const std::string& kernel, const std::vector<float>& x, std::int64_t m, std::int64_t k,
                           std::int64_t block) {
  Guarded<float> y(m * k);
  const ForceKernel force("hadamard", kernel);
  hadamard(TensorView(x.data(), DType::f32, {m, k}), block, TensorView(y.data(), DType::f32, {m, k}));
  EXPECT_TRUE(y.guards_intact());
  return {y.data(), y.data() + m * k};
}

TEST(Hadamard, EveryKernelHasTheReferencesBits) {
  for (const std::int64_t block : {1, 2, 4, 8, 16, 32, 64, 1024}) {
    const std::int64_t m = 5, k = 3 * block;
    const auto x = normal_values(m * k, 7);
    const auto expected = rotated("reference", x, m, k, block);
    for (const KernelInfo& kernel : kernels("hadamard")) {
      if (!kernel.available) continue;
      const auto y = rotated(kernel.name, x, m, k, block);
      for (std::int64_t i = 0; i < m * k; ++i)
        ASSERT_EQ(bits_of(y[i]), bits_of(expected[i])) << kernel.name << " " << i;
    }
  }
}

TEST(Hadamard, ItIsTheMatrixOfSylvester) {
  const std::int64_t k = 16;
  std::vector<float> unit(k * k, 0.0f);
  for (std::int64_t i = 0; i < k; ++i) unit[i * k + i] = 1.0f;
  const auto matrix = rotated("reference", unit, k, k, k);
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      int common = 0;  // bits that both indices have
      for (std::int64_t bits = i & j; bits; bits &= bits - 1) ++common;
      EXPECT_EQ(matrix[i * k + j], common % 2 ? -0.25f : 0.25f);
    }
}

TEST(Hadamard, RefusesBlocksThatAreNoPowerOfTwoOrDoNotDivide) {
  const auto x = normal_values(24, 1);
  Guarded<float> y(24);
  const TensorView input(x.data(), DType::f32, {2, 12}), output(y.data(), DType::f32, {2, 12});
  for (const std::int64_t block : {0, -4, 3, 8}) EXPECT_THROW(hadamard(input, block, output), ValueError);
  EXPECT_THROW(hadamard(input, 4, TensorView(y.data(), DType::f32, {12, 2})), ValueError);
  EXPECT_TRUE(y.poisoned(0));
  EXPECT_THROW(hadamard(output, 4, output), ValueError);
}

}  // namespace
}  // namespace qcore::test
