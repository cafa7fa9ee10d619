#include <algorithm>
#include <sstream>
#include <thread>

#include "emulator.h"
#include "support.h"

// The kernels of AMX against the reference, on this processor's instructions or emulated ones.
namespace qcore::test {
namespace {

constexpr const char* kKernel = "int8_amx";

class Amx : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto names = available_cpu_kernels();
    if (!std::count(names.begin(), names.end(), kKernel)) GTEST_SKIP() << "the processor lacks AVX-512 VNNI";
  }
};

constexpr ComputeMode kModes[] = {ComputeMode::int8, ComputeMode::int8_asym};
constexpr WeightCase kForms[] = {
    {4, 0, Scheme::symmetric}, {4, 0, Scheme::asymmetric}, {8, 0, Scheme::symmetric}, {8, 0, Scheme::asymmetric}};

struct Depth {
  std::int64_t k, block;
};

// Blocks shorter than a tile register's k, as long, longer by one step or by several registers; short last blocks;
// more blocks than are decoded at once; blocks of one.
constexpr Depth kDepths[] = {{1, 16},   {31, 16},   {33, 32},     {70, 64},   {9, 1},      {200, 80},
                             {325, 68}, {257, 128}, {1100, 1100}, {2600, 64}, {2700, 512}, {130, 32}};

TEST_F(Amx, LinearGivesTheReferencesBits) {
  for (const Depth& depth : kDepths)
    for (WeightCase form : kForms) {
      form.block_size = depth.block;
      const bool long_one = depth.k > 1000;
      for (const std::int64_t n : long_one ? std::vector<std::int64_t>{33} : std::vector<std::int64_t>{1, 16, 49}) {
        const auto w = random_weight(n, depth.k, form);
        const auto bias = normal_values(n, 11);
        const TensorView bias_view(bias.data(), DType::f32, {n});
        for (const std::int64_t m :
             long_one ? std::vector<std::int64_t>{35} : std::vector<std::int64_t>{1, 16, 17, 67}) {
          const auto x = normal_values(m * depth.k, 12);
          for (const ComputeMode compute : kModes) {
            LinearOptions options = computing(compute);
            if (n == 16) options.activation = {ActivationKind::clamp, -0.5f, 2.0f};
            if (n == 49) options.activation = {ActivationKind::silu, 0.0f, 0.0f};
            const auto expected = linear_on("reference", x, m, w, options, &bias_view);
            ASSERT_TRUE(same_bits(linear_on(kKernel, x, m, w, options, &bias_view), expected))
                << "M " << m << " N " << n << " K " << depth.k << " g " << depth.block << " bits " << form.bits
                << " compute " << static_cast<int>(compute);
          }
        }
      }
    }
}

// Rows and columns of x and y apart in memory, of every dtype; what lies between those of y keeps its poison.
TEST_F(Amx, StridedArraysGiveTheReferencesBits) {
  const std::int64_t m = 37, n = 40, k = 150;
  const auto w = random_weight(n, k, {4, 32, Scheme::asymmetric});
  const auto values = normal_values(m * k * 3, 5);
  for (const std::int64_t column : {1, 2}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      std::vector<std::uint16_t> halves(values.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        halves[i] = static_cast<std::uint16_t>(dtype == DType::f16 ? numerics::float_to_half(values[i])
                                                                   : numerics::float_to_bfloat(values[i]));
      TensorView x(dtype == DType::f32 ? static_cast<const void*>(values.data()) : halves.data(), dtype, {m, k});
      x.strides[0] = k * column + 7, x.strides[1] = column;
      std::vector<std::vector<std::uint8_t>> results;
      for (const char* kernel : {"reference", kKernel}) {
        const std::int64_t item = dtype == DType::f32 ? 4 : 2, extent = m * (n * column + 3);
        Guarded<std::uint8_t> out(extent * item);
        TensorView y(out.data(), dtype, {m, n});
        y.strides[0] = n * column + 3, y.strides[1] = column;
        ForceKernel force("linear", kernel);
        linear(x, w, nullptr, y, computing(ComputeMode::int8_asym));
        EXPECT_TRUE(out.guards_intact());
        results.emplace_back(out.data(), out.data() + out.size());
      }
      EXPECT_EQ(results[0], results[1]) << "column stride " << column << " dtype " << static_cast<int>(dtype);
    }
  }
}

TEST_F(Amx, OutliersConstantsAndZerosGiveTheReferencesBits) {
  const std::int64_t m = 18, n = 20, k = 160;
  for (WeightCase form : kForms) {
    form.block_size = 32;
    auto weights = normal_values(n * k, 13);
    for (std::int64_t i = 0; i < n; ++i) {
      std::fill_n(&weights[i * k], 32, 0.25f * static_cast<float>(i));
      std::fill_n(&weights[i * k + 32], 32, 0.0f);
      weights[i * k + 64] *= 1e5f;
    }
    const auto w = QuantizedTensor::quantize(TensorView(weights.data(), DType::f32, {n, k}),
                                             {form.bits, form.block_size, form.scheme, Method::rtn});
    auto x = normal_values(m * k, 14);
    for (std::int64_t i = 0; i < m; ++i) {
      x[i * k + 70] *= 1e5f;
      std::fill_n(&x[i * k + 96], 32, -3.0f);
      std::fill_n(&x[i * k + 128], 32, i % 2 ? -0.0f : 1e-42f);
    }
    for (const ComputeMode compute : kModes)
      EXPECT_TRUE(same_bits(linear_on(kKernel, x, m, w, computing(compute)),
                            linear_on("reference", x, m, w, computing(compute))));
  }
}

TEST_F(Amx, GroupedLinearGivesTheReferencesBits) {
  const std::int64_t counts[] = {20, 0, 33, 1}, n = 24, k = 96, m = 54;
  std::vector<QuantizedTensor> each;
  for (unsigned e = 0; e < 4; ++e) each.push_back(random_weight(n, k, {8, 32, Scheme::symmetric}, 30 + e));
  const auto w = QuantizedTensor::concatenate(each.data(), 4);
  const auto x = normal_values(m * k, 6);
  std::vector<std::vector<float>> results;
  for (const char* kernel : {"reference", kKernel}) {
    ForceKernel force("grouped_linear", kernel);
    Guarded<float> y(m * n);
    grouped_linear(TensorView(x.data(), DType::f32, {m, k}), w, TensorView(counts, DType::i64, {4}), nullptr,
                   TensorView(y.data(), DType::f32, {m, n}), computing(ComputeMode::int8));
    EXPECT_TRUE(y.guards_intact());
    results.emplace_back(y.data(), y.data() + y.size());
  }
  EXPECT_TRUE(same_bits(results[0], results[1]));
}

struct Image {
  std::int64_t channels, height, width, outputs, kernel, block;
  ConvParams window;
};

// Rows of a tile that lie evenly and, at the edges of an image, don't; groups whose outputs share a panel; strides.
const Image kImages[] = {
    {32, 9, 8, 33, 3, 16, {{1, 1}, {1, 1, 1, 1}, {1, 1}, 1}},
    {45, 8, 9, 32, 3, 32, {{2, 1}, {2, 0, 1, 1}, {1, 2}, 1}},
    {72, 6, 7, 60, 2, 24, {{1, 1}, {0, 0, 0, 0}, {1, 1}, 3}},
};

TEST_F(Amx, Conv2dGivesTheReferencesBits) {
  for (const Image& c : kImages) {
    const std::int64_t per_group = c.channels / c.window.groups;
    const auto values = normal_values(c.outputs * per_group * c.kernel * c.kernel, 3);
    const auto x = normal_values(2 * c.channels * c.height * c.width, 4);
    const auto out = [&](std::int64_t input, int axis) {
      const std::int64_t span = c.window.dilation[axis] * (c.kernel - 1) + 1;
      return (input + c.window.padding[axis] + c.window.padding[axis + 2] - span) / c.window.stride[axis] + 1;
    };
    const std::int64_t height = out(c.height, 0), width = out(c.width, 1);
    for (const WeightCase& form : kForms) {
      const auto w =
          QuantizedTensor::quantize(TensorView(values.data(), DType::f32, {c.outputs, per_group, c.kernel, c.kernel}),
                                    {form.bits, c.block, form.scheme, Method::rtn});
      for (const ComputeMode compute : kModes) {
        Conv2dOptions options;
        options.window = c.window;
        options.compute = compute;
        std::vector<std::vector<float>> results;
        for (const char* kernel : {"reference", kKernel}) {
          ForceKernel force("conv2d", kernel);
          Guarded<float> y(2 * c.outputs * height * width);
          conv2d(TensorView(x.data(), DType::f32, {2, c.channels, c.height, c.width}), w, nullptr,
                 TensorView(y.data(), DType::f32, {2, c.outputs, height, width}), options);
          EXPECT_TRUE(y.guards_intact());
          results.emplace_back(y.data(), y.data() + y.size());
        }
        ASSERT_TRUE(same_bits(results[0], results[1]))
            << "channels " << c.channels << " bits " << form.bits << " compute " << static_cast<int>(compute);
      }
    }
  }
}

// Several registers' codes per pixel, as many as divide the pixel's; an odd number of panels; tiles of up to 32 rows.
TEST_F(Amx, StaticLinearGivesTheReferencesBits) {
  const std::int64_t m = 55, n = 150;
  for (const std::int64_t k : {136, 192})
    for (const DType dtype : {DType::u8, DType::i8}) {
      std::vector<std::uint8_t> weight(static_cast<std::size_t>(n * k)), x(static_cast<std::size_t>(m * k));
      for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<std::uint8_t>(i * 2654435761u >> 11);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::uint8_t>(i * 2246822519u >> 13);
      const std::vector<float> scales(static_cast<std::size_t>(n), 0.01f);
      StaticOptions options;
      options.x = {dtype, 0.02f, 3};
      options.y = {dtype, 0.3f, 5};
      const auto layer = StaticLinear::create(TensorView(weight.data(), DType::i8, {n, k}),
                                              TensorView(scales.data(), DType::f32, {n}), nullptr, options);
      std::vector<std::vector<std::uint8_t>> results;
      for (const char* kernel : {"reference", "amx"}) {
        Guarded<std::uint8_t> y(m * n);
        ForceKernel force("static", kernel);
        layer.run(TensorView(x.data(), dtype, {m, k}), TensorView(static_cast<void*>(y.data()), dtype, {m, n}));
        EXPECT_TRUE(y.guards_intact());
        EXPECT_TRUE(amx_is_released());
        results.emplace_back(y.data(), y.data() + y.size());
      }
      EXPECT_EQ(results[0], results[1]) << "K " << k;
    }
}

TEST_F(Amx, IsChosenForManyRowsOnly) {
  const auto w = random_weight(16, 64, {});
  const auto run = [&](std::int64_t m) {
    const auto x = normal_values(m * 64, 2);
    std::vector<float> y(static_cast<std::size_t>(m * 16));
    linear(TensorView(x.data(), DType::f32, {m, 64}), w, nullptr, TensorView(y.data(), DType::f32, {m, 16}),
           computing(ComputeMode::int8));
    return last_kernel("linear");
  };
  EXPECT_EQ(run(31), "int8_avx512vnni");
  EXPECT_EQ(run(32), kKernel);
}

// Every task configures the registers once, and releases them.
TEST_F(Amx, ThreadsReleaseTheRegisters) {
  const std::int64_t m = 96, n = 128, k = 128;
  const auto w = random_weight(n, k, {8, 64, Scheme::symmetric});
  const auto x = normal_values(m * k, 2);
  const int before = get_num_threads();
  set_num_threads(3);
  const AmxCounts start = amx_counts();
  const auto y = linear_on(kKernel, x, m, w, computing(ComputeMode::int8));
  const AmxCounts end = amx_counts();
  set_num_threads(before);
  EXPECT_TRUE(same_bits(y, linear_on("reference", x, m, w, computing(ComputeMode::int8))));
  EXPECT_TRUE(amx_is_released());
  EXPECT_EQ(end.releases - start.releases, end.configurations - start.configurations);
  if (end.loads == 0) return;  // the processor has AMX
  EXPECT_GT(end.releases, start.releases);
  EXPECT_EQ(end.products - start.products, 6 * 8 * 2);  // 16 rows, 16 columns and 64 k each
  EXPECT_EQ(end.stores - start.stores, 6 * 8 * 2);
}

}  // namespace
}  // namespace qcore::test
