#include "support.h"

namespace qcore::test {
namespace {

// Two columns of one row: the first one's error, 0.3 of a step, moves the second to the next code.
TEST(GptqColumns, TheErrorOfAColumnChangesTheNext) {
  Guarded<float> weights(2);
  weights[0] = 1.3f;
  weights[1] = 2.0f;
  const float factor[] = {1.0f, -2.0f, 0.0f, 0.5f}, scales[] = {1.0f};
  const std::int64_t blocks[] = {0, 0};
  Guarded<std::int8_t> codes(2);
  GptqColumns columns;
  columns.weights = TensorView(weights.data(), DType::f32, {1, 2});
  columns.factor = TensorView(factor, DType::f32, {2, 2});
  columns.scales = TensorView(scales, DType::f32, {1, 1});
  columns.blocks = TensorView(blocks, DType::i64, {2});
  columns.codes = TensorView(codes.data(), DType::i8, {1, 2});
  gptq_columns(columns);
  EXPECT_EQ(codes[0], 1);
  EXPECT_EQ(codes[1], 3);  // of 2 + 2 * 0.3
  EXPECT_NEAR(weights[0], 0.3f, 1e-6f);
  EXPECT_NEAR(weights[1], (2.6f - 3.0f) / 0.5f, 1e-5f);
  EXPECT_TRUE(weights.guards_intact() && codes.guards_intact());
}

TEST(GptqColumns, RefusesWhatIsImpossible) {
  Guarded<float> weights(2);
  weights[0] = weights[1] = 1.0f;
  const float singular[] = {1.0f, 0.0f, 0.0f, 0.0f}, scales[] = {1.0f};
  const std::int64_t outside[] = {0, 1}, inside[] = {0, 0};
  Guarded<std::int8_t> codes(2);
  GptqColumns columns;
  columns.weights = TensorView(weights.data(), DType::f32, {1, 2});
  columns.factor = TensorView(singular, DType::f32, {2, 2});
  columns.scales = TensorView(scales, DType::f32, {1, 1});
  columns.blocks = TensorView(inside, DType::i64, {2});
  columns.codes = TensorView(codes.data(), DType::i8, {1, 2});
  EXPECT_THROW(gptq_columns(columns), ValueError);  // factor[1, 1]
  const float regular[] = {1.0f, 0.0f, 0.0f, 1.0f};
  columns.factor = TensorView(regular, DType::f32, {2, 2});
  columns.blocks = TensorView(outside, DType::i64, {2});
  EXPECT_THROW(gptq_columns(columns), ValueError);
  columns.blocks = TensorView(inside, DType::i64, {2});
  columns.bits = 7;
  EXPECT_THROW(gptq_columns(columns), ValueError);
  EXPECT_TRUE(codes.poisoned(0));
  columns.bits = 8;
  gptq_columns(columns);
  EXPECT_EQ(codes[1], 1);
}

}  // namespace
}  // namespace qcore::test
