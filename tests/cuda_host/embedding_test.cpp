// The CUDA row of embedding on the machine against the CPU's: the same bits in y, and not a byte changed around it.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "device_arrays.h"
#include "embedding/problem.h"

namespace qcore {
namespace {

void expect_same_rows(std::int64_t n, std::int64_t k, std::int64_t block_size, int bits, Scheme scheme, DType dtype,
                      std::int64_t column_stride) {
  Random random(static_cast<std::uint64_t>(n * 1000 + k + bits));
  const QuantizedTensor weight = random_weight(random, n, k, block_size, bits, scheme);
  std::vector<std::int64_t> indices;
  for (int i = 0; i < 9; ++i) indices.push_back(random.below(static_cast<int>(n)));
  const auto count = static_cast<std::int64_t>(indices.size());
  const std::int64_t row_stride = k * column_stride + 3;
  std::vector<char> expected(static_cast<std::size_t>(count * row_stride * item_size(dtype)), 0x5a);
  TensorView y(expected.data(), dtype, {count, k});
  y.strides[0] = row_stride;
  y.strides[1] = column_stride;
  embedding(TensorView(indices.data(), DType::i64, {count}), weight, y);

  const auto moved = on_device(weight.packed());
  const DeviceArray<char> got(std::vector<char>(expected.size(), 0x5a));
  const DeviceArray<std::int64_t> on_device_indices(indices);
  RowView index_rows, rows = row_view(y);
  index_rows.data = on_device_indices.get();
  index_rows.append(count, 1);
  rows.data = got.get();
  run_embedding_cuda({*moved, index_rows, true, rows, count, kCuda, nullptr});
  EXPECT_EQ(got.host(), expected) << n << " x " << k << ", g " << block_size << ", " << bits << " bits";
}

TEST(Embedding, HasTheBitsOfTheCpu) {
  for (int bits : {4, 8})
    for (Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
      for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        expect_same_rows(33, 130, 64, bits, scheme, dtype, 1);
        expect_same_rows(7, 5, 64, bits, scheme, dtype, 2);
        expect_same_rows(40, 600, 6, bits, scheme, dtype, 1);
      }
}

TEST(Embedding, AnIndexOutsideGivesNan) {
  Random random(1);
  const QuantizedTensor weight = random_weight(random, 20, 24, 8, 4, Scheme::symmetric);
  const auto moved = on_device(weight.packed());
  const DeviceArray<std::int32_t> indices(std::vector<std::int32_t>{-1, 20, 3});
  const DeviceArray<float> y(std::vector<float>(3 * 24, 7.0f));
  RowView index_rows, rows;
  index_rows.data = indices.get();
  index_rows.append(3, 1);
  rows.data = y.get();
  rows.append(3, 24);
  run_embedding_cuda({*moved, index_rows, false, rows, 3, kCuda, nullptr});
  const std::vector<float> got = y.host();
  for (int i = 0; i < 48; ++i) EXPECT_TRUE(std::isnan(got[i])) << i;
  for (int i = 48; i < 72; ++i) EXPECT_FALSE(std::isnan(got[i])) << i;
}

}  // namespace
}  // namespace qcore
