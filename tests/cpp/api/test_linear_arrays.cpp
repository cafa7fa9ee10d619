#include <functional>

#include "support.h"

// Layouts and dtypes of linear's arrays: whatever they are, the values are those of contiguous fp32.
namespace qcore::test {
namespace {

constexpr std::int64_t kM = 6, kN = 37, kK = 100;

QuantizedTensor weight() { return random_weight(kN, kK, {4, 32, Scheme::asymmetric}); }

// Runs `body` under every available kernel and compute mode that go together.
void for_each_kernel(const std::function<void(const LinearOptions&, const std::string&)>& body) {
  for (const ComputeMode compute : kComputes)
    for (const std::string& kernel : available_cpu_kernels()) {
      if (!takes(kernel, compute)) continue;
      SCOPED_TRACE(kernel + ", compute " + std::to_string(static_cast<int>(compute)));
      ForceKernel force("linear", kernel);
      body(computing(compute), kernel);
    }
}

TEST(LinearArrays, InputStrides) {
  const auto w = weight();
  const auto x = normal_values(kM * kK, 21);
  struct Layout {
    std::int64_t row, column, first, elements;
  };
  const Layout layouts[] = {
      {kK + 3, 1, 0, kM * (kK + 3)},     // gaps between rows
      {1, kM, 0, kM * kK},               // transposed
      {-kK, 1, (kM - 1) * kK, kM * kK},  // rows backwards
      {kK, -1, kK - 1, kM * kK},         // columns backwards
      {2 * kK, 2, 1, 2 * kM * kK},       // every other element
  };
  for_each_kernel([&](const LinearOptions& options, const std::string& kernel) {
    const auto expected = linear_on(kernel, x, kM, w, options);
    for (const Layout& layout : layouts) {
      Guarded<float> memory(layout.elements);
      for (std::int64_t i = 0; i < kM; ++i)
        for (std::int64_t j = 0; j < kK; ++j) memory[layout.first + i * layout.row + j * layout.column] = x[i * kK + j];
      TensorView view(memory.data() + layout.first, DType::f32, {kM, kK});
      view.strides[0] = layout.row;
      view.strides[1] = layout.column;
      std::vector<float> y(kM * kN);
      linear(view, w, nullptr, TensorView(y.data(), DType::f32, {kM, kN}), options);
      EXPECT_TRUE(same_bits(y, expected)) << "strides " << layout.row << ", " << layout.column;
    }
  });
}

TEST(LinearArrays, BroadcastInput) {
  const auto w = weight();
  const auto x = normal_values(kK, 22);
  for_each_kernel([&](const LinearOptions& options, const std::string& kernel) {
    const auto expected = linear_on(kernel, x, 1, w, options);
    TensorView view(x.data(), DType::f32, {kM, kK});
    view.strides[0] = 0;
    std::vector<float> y(kM * kN);
    linear(view, w, nullptr, TensorView(y.data(), DType::f32, {kM, kN}), options);
    for (std::int64_t i = 0; i < kM; ++i)
      EXPECT_TRUE(same_bits(std::vector<float>(&y[i * kN], &y[i * kN] + kN), expected));
  });
}

TEST(LinearArrays, LeadingAxes) {
  const auto w = weight();
  const auto x = normal_values(kM * kK, 23);
  for_each_kernel([&](const LinearOptions& options, const std::string& kernel) {
    const auto expected = linear_on(kernel, x, kM, w, options);
    // [2, 3, K] as a transpose of [3, 2, K] in memory.
    std::vector<float> memory(kM * kK);
    for (std::int64_t a = 0; a < 2; ++a)
      for (std::int64_t b = 0; b < 3; ++b) std::copy_n(&x[(a * 3 + b) * kK], kK, &memory[(b * 2 + a) * kK]);
    TensorView view(memory.data(), DType::f32, {2, 3, kK});
    view.strides[0] = kK;
    view.strides[1] = 2 * kK;
    std::vector<float> y(kM * kN);
    linear(view, w, nullptr, TensorView(y.data(), DType::f32, {2, 3, kN}), options);
    EXPECT_TRUE(same_bits(y, expected));

    std::vector<float> row(kN);
    linear(TensorView(x.data(), DType::f32, {kK}), w, nullptr, TensorView(row.data(), DType::f32, {kN}), options);
    EXPECT_TRUE(same_bits(row, std::vector<float>(expected.begin(), expected.begin() + kN)));
  });
}

TEST(LinearArrays, OutputStridesAndPoison) {
  const auto w = weight();
  const auto x = normal_values(kM * kK, 24);
  const TensorView x_view(x.data(), DType::f32, {kM, kK});
  struct Layout {
    std::int64_t row, column, first, elements;
  };
  const Layout layouts[] = {
      {kN, 1, 0, kM * kN},         {kN + 5, 1, 2, kM * (kN + 5) + 2},
      {1, kM, 0, kM * kN},         {-kN, 1, (kM - 1) * kN, kM * kN},
      {2 * kN, 2, 1, 2 * kM * kN},
  };
  for_each_kernel([&](const LinearOptions& options, const std::string& kernel) {
    const auto expected = linear_on(kernel, x, kM, w, options);
    for (const Layout& layout : layouts) {
      Guarded<float> memory(layout.elements);
      TensorView view(memory.data() + layout.first, DType::f32, {kM, kN});
      view.strides[0] = layout.row;
      view.strides[1] = layout.column;
      linear(x_view, w, nullptr, view, options);
      std::vector<bool> addressed(layout.elements);
      std::vector<float> y(kM * kN);
      for (std::int64_t i = 0; i < kM; ++i)
        for (std::int64_t j = 0; j < kN; ++j) {
          const std::int64_t at = layout.first + i * layout.row + j * layout.column;
          addressed[at] = true;
          y[i * kN + j] = memory[at];
        }
      EXPECT_TRUE(same_bits(y, expected)) << "strides " << layout.row << ", " << layout.column;
      for (std::int64_t i = 0; i < layout.elements; ++i)
        EXPECT_EQ(memory.poisoned(i), !addressed[i]) << "element " << i;
      EXPECT_TRUE(memory.guards_intact());
    }
  });
}

std::vector<std::uint16_t> narrowed(const std::vector<float>& values, DType dtype) {
  std::vector<std::uint16_t> bits;
  for (float value : values)
    bits.push_back(dtype == DType::f16 ? numerics::float_to_half(value) : numerics::float_to_bfloat(value));
  return bits;
}

std::vector<float> widened(const std::vector<std::uint16_t>& bits, DType dtype) {
  std::vector<float> values;
  for (std::uint16_t b : bits)
    values.push_back(dtype == DType::f16 ? numerics::half_to_float(b) : numerics::bfloat_to_float(b));
  return values;
}

TEST(LinearArrays, HalfAndBfloat) {
  const auto w = weight();
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const auto x = narrowed(normal_values(kM * kK, 25), dtype);
    const auto bias = narrowed(normal_values(kN, 26), dtype);
    const auto wide_x = widened(x, dtype), wide_bias = widened(bias, dtype);
    const TensorView wide_bias_view(wide_bias.data(), DType::f32, {kN});
    for_each_kernel([&](const LinearOptions& options, const std::string& kernel) {
      const auto expected = linear_on(kernel, wide_x, kM, w, options, &wide_bias_view);
      const TensorView x_view(x.data(), dtype, {kM, kK}), bias_view(bias.data(), dtype, {kN});
      std::vector<float> y(kM * kN);
      linear(x_view, w, &bias_view, TensorView(y.data(), DType::f32, {kM, kN}), options);
      EXPECT_TRUE(same_bits(y, expected));
      for (const std::int64_t stride : {1, 2}) {
        Guarded<std::uint16_t> narrow(kM * kN * stride);
        TensorView view(narrow.data(), dtype, {kM, kN});
        view.strides[0] = kN * stride;
        view.strides[1] = stride;
        linear(x_view, w, &bias_view, view, options);
        const auto rounded = narrowed(expected, dtype);
        for (std::int64_t i = 0; i < kM * kN; ++i) ASSERT_EQ(narrow[i * stride], rounded[i]) << "element " << i;
        EXPECT_TRUE(narrow.guards_intact());
      }
    });
  }
}

TEST(LinearArrays, BiasStrides) {
  const auto w = weight();
  const auto x = normal_values(kM * kK, 27), bias = normal_values(kN, 28);
  std::vector<float> spread(3 * kN, -1.0f);
  for (std::int64_t i = 0; i < kN; ++i) spread[3 * (kN - 1 - i)] = bias[i];
  const TensorView plain(bias.data(), DType::f32, {kN});
  TensorView strided(spread.data() + 3 * (kN - 1), DType::f32, {kN});
  strided.strides[0] = -3;
  for_each_kernel([&](const LinearOptions& options, const std::string& kernel) {
    EXPECT_TRUE(
        same_bits(linear_on(kernel, x, kM, w, options, &strided), linear_on(kernel, x, kM, w, options, &plain)));
  });
}

TEST(LinearArrays, EmptyArrays) {
  float nothing = 0;
  const auto w = weight();
  linear(TensorView(&nothing, DType::f32, {0, kK}), w, nullptr, TensorView(&nothing, DType::f32, {0, kN}), {});

  const auto no_features = QuantizedTensor::quantize(TensorView(&nothing, DType::f32, {kN, 0}), {});
  const auto bias = normal_values(kN, 29);
  const TensorView bias_view(bias.data(), DType::f32, {kN});
  for_each_kernel([&](const LinearOptions& options, const std::string&) {
    std::vector<float> y(2 * kN, -1.0f);
    linear(TensorView(&nothing, DType::f32, {2, 0}), no_features, &bias_view, TensorView(y.data(), DType::f32, {2, kN}),
           options);
    for (std::int64_t i = 0; i < 2 * kN; ++i) EXPECT_EQ(y[i], bias[i % kN]);
  });
}

}  // namespace
}  // namespace qcore::test
