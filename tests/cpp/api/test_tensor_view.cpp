#include "support.h"

namespace qcore::test {
namespace {

TEST(TensorView, OfAPointerIsContiguous) {
  float data[24];
  const TensorView view(data, DType::f32, {2, 3, 4});
  EXPECT_EQ(view.data, data);
  EXPECT_EQ(view.rank, 3);
  EXPECT_EQ(view.size(), 24);
  EXPECT_EQ(view.strides[0], 12);
  EXPECT_EQ(view.strides[1], 4);
  EXPECT_EQ(view.strides[2], 1);
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_FALSE(view.read_only);
  EXPECT_EQ(view.device, kCpu);
}

TEST(TensorView, OfAConstPointerIsReadOnly) {
  const float data[2] = {};
  EXPECT_TRUE(TensorView(data, DType::f32, {2}).read_only);
}

TEST(TensorView, ContiguityIgnoresStridesOfSingleElements) {
  float data[8];
  TensorView view(data, DType::f32, {1, 8});
  view.strides[0] = 1000;
  EXPECT_TRUE(view.is_contiguous());
  view.strides[1] = 2;
  EXPECT_FALSE(view.is_contiguous());
}

TEST(TensorView, EmptyIsContiguous) {
  TensorView view(static_cast<float*>(nullptr), DType::f32, {3, 0});
  view.strides[0] = 7;
  EXPECT_EQ(view.size(), 0);
  EXPECT_TRUE(view.is_contiguous());
}

TEST(TensorView, ScalarHasOneElement) {
  float value = 0;
  const TensorView view(&value, DType::f32, {});
  EXPECT_EQ(view.rank, 0);
  EXPECT_EQ(view.size(), 1);
  EXPECT_EQ(shape_string(view), "[]");
}

TEST(TensorView, RankIsLimited) {
  float value = 0;
  EXPECT_EQ(error_of<ValueError>([&] { TensorView(&value, DType::f32, {1, 1, 1, 1, 1, 1, 1, 1, 1}); }),
            "TensorView: rank 9, expected at most 8");
}

TEST(TensorView, NamesAndSizes) {
  const struct {
    DType dtype;
    const char* name;
    std::int64_t bytes;
  } known[] = {{DType::f32, "float32", 4}, {DType::f16, "float16", 2}, {DType::bf16, "bfloat16", 2},
               {DType::i8, "int8", 1},     {DType::u8, "uint8", 1},    {DType::i16, "int16", 2},
               {DType::i32, "int32", 4}};
  for (const auto& row : known) {
    EXPECT_STREQ(name(row.dtype), row.name);
    EXPECT_EQ(item_size(row.dtype), row.bytes) << row.name;
  }
  EXPECT_EQ(name(kCpu), "cpu");
  EXPECT_EQ(name(Device{DeviceType::cuda, 3}), "cuda:3");
  float data[6];
  EXPECT_EQ(shape_string(TensorView(data, DType::f32, {2, 3})), "[2, 3]");
}

}  // namespace
}  // namespace qcore::test
