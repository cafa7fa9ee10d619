#include <algorithm>
#include <cmath>
#include <limits>

#include "emulator.h"
#include "numerics/block_scale.h"
#include "support.h"

// The kernel of AMX for bf16 activations, on this processor's instructions or emulated ones: within the bound of a
// float sum, and within that of tiny sums, which the instruction takes for zeros.
namespace qcore::test {
namespace {

constexpr const char* kKernel = "float_amx";
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class AmxBfloat : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto names = available_cpu_kernels();
    if (!std::count(names.begin(), names.end(), kKernel))
      GTEST_SKIP() << "the processor lacks AVX-512 VNNI or AMX-BF16";
  }
};

constexpr WeightCase kForms[] = {
    {4, 0, Scheme::symmetric}, {4, 0, Scheme::asymmetric}, {8, 0, Scheme::symmetric}, {8, 0, Scheme::asymmetric}};

using Bfloats = std::vector<std::uint16_t>;

Bfloats bfloats(const std::vector<float>& values) {
  Bfloats halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), numerics::float_to_bfloat);
  return halves;
}

std::vector<float> linear_of(const std::string& kernel, const Bfloats& x, std::int64_t m, const QuantizedTensor& w,
                             const LinearOptions& options = computing(ComputeMode::floating),
                             const TensorView* bias = nullptr) {
  ForceKernel force("linear", kernel);
  Guarded<float> y(m * w.rows());
  linear(TensorView(x.data(), DType::bf16, {m, w.features()}), w, bias, TensorView(y.data(), DType::f32, {m, w.rows()}),
         options);
  EXPECT_EQ(last_kernel("linear"), kernel);
  EXPECT_TRUE(y.guards_intact());
  return {y.data(), y.data() + y.size()};
}

// The value that a result must have, from sums in double, and how far it may lie from it.
struct Exact {
  double value, bound;
};

class Weights {
 public:
  explicit Weights(const QuantizedTensor& w)
      : n_(w.rows()),
        k_(w.features()),
        g_(w.block_size()),
        blocks_((k_ + g_ - 1) / g_),
        codes_(n_ * k_),
        scales_(n_ * blocks_),
        offsets_(n_ * blocks_) {
    w.codes(TensorView(codes_.data(), DType::i8, {n_, k_}));
    w.scales(TensorView(scales_.data(), DType::f32, {n_, blocks_}));
    w.offsets(TensorView(offsets_.data(), DType::f32, {n_, blocks_}));
  }

  // Codes and offset take part separately, so that their magnitudes, not that of their sum, bound the rounding. A
  // subnormal x, and a sum smaller than the least normal float, count as zero: of each k at most that float times the
  // code, once for x and twice for sums.
  Exact product(const std::uint16_t* x, std::int64_t row) const {
    double value = 0, magnitude = 0, tiny = 0;
    for (std::int64_t k = 0; k < k_; ++k) {
      const double scale = scales_[row * blocks_ + k / g_], offset = offsets_[row * blocks_ + k / g_];
      const double a = numerics::bfloat_to_float(x[k]), code = codes_[row * k_ + k];
      value += a * static_cast<double>(
                       numerics::decode(codes_[row * k_ + k], static_cast<float>(scale), static_cast<float>(offset)));
      magnitude += std::abs(a) * (std::abs(scale * code) + 2 * std::abs(offset));
      tiny += std::ldexp(std::abs(scale) * (std::abs(code) + 2), -126);
    }
    return {value, 4 * static_cast<double>(blocks_ + std::min(g_, k_)) * std::ldexp(magnitude, -24) + tiny +
                       std::ldexp(1.0, -149)};
  }

  std::int64_t rows() const { return n_; }
  std::int64_t features() const { return k_; }

 private:
  std::int64_t n_, k_, g_, blocks_;
  std::vector<std::int8_t> codes_;
  std::vector<float> scales_, offsets_;
};

// Says where a result of M rows, after a bias or without one, is out of its bound.
::testing::AssertionResult within_bound(const std::vector<float>& y, const Bfloats& x, const Weights& w,
                                        const std::vector<float>& bias = {}) {
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) % w.rows();
    const Exact exact = w.product(&x[static_cast<std::int64_t>(i) / w.rows() * w.features()], row);
    const double added = bias.empty() ? 0 : bias[static_cast<std::size_t>(row)];
    const double wanted = exact.value + added, bound = exact.bound + std::ldexp(std::abs(wanted), -23);
    if (!(std::abs(y[i] - wanted) <= bound))
      return ::testing::AssertionFailure()
             << "element " << i << ": " << y[i] << ", expected " << wanted << " +- " << bound;
  }
  return ::testing::AssertionSuccess();
}

struct Depth {
  std::int64_t k, block;
};

// Blocks shorter than a tile register's k, as long, longer by one step or by several registers; such as end within a
// register; short last blocks; more blocks than are decoded at once; blocks of one.
constexpr Depth kDepths[] = {{1, 16},   {31, 16},   {33, 32},     {70, 64},   {9, 1},      {200, 80},
                             {325, 68}, {257, 128}, {1100, 1100}, {2600, 64}, {2700, 512}, {130, 32}};

TEST_F(AmxBfloat, LinearIsWithinTheBound) {
  for (const Depth& depth : kDepths)
    for (WeightCase form : kForms) {
      form.block_size = depth.block;
      const bool long_one = depth.k > 1000;
      for (const std::int64_t n : long_one ? std::vector<std::int64_t>{33} : std::vector<std::int64_t>{1, 16, 49}) {
        const auto w = random_weight(n, depth.k, form);
        const Weights exact(w);
        const auto bias = normal_values(n, 11);
        const TensorView bias_view(bias.data(), DType::f32, {n});
        for (const std::int64_t m :
             long_one ? std::vector<std::int64_t>{35} : std::vector<std::int64_t>{1, 16, 17, 67}) {
          const Bfloats x = bfloats(normal_values(m * depth.k, 12));
          const auto y = linear_of(kKernel, x, m, w);
          ASSERT_TRUE(within_bound(y, x, exact))
              << "M " << m << " N " << n << " K " << depth.k << " g " << depth.block << " bits " << form.bits;
          LinearOptions options = computing(ComputeMode::floating);
          options.activation = {ActivationKind::clamp, -0.5f, 2.0f};
          auto clamped = y;
          for (std::size_t i = 0; i < y.size(); ++i)
            clamped[i] = std::min(std::max(y[i] + bias[i % static_cast<std::size_t>(n)], -0.5f), 2.0f);
          ASSERT_TRUE(same_bits(linear_of(kKernel, x, m, w, options, &bias_view), clamped));
        }
      }
    }
}

// One row alone is the same as in company, on any number of threads and in any layout.
TEST_F(AmxBfloat, ARowDoesNotDependOnOthers) {
  const std::int64_t m = 70, n = 90, k = 1100;
  const auto w = random_weight(n, k, {4, 96, Scheme::asymmetric});
  const Bfloats x = bfloats(normal_values(m * k, 5));
  const auto expected = linear_of(kKernel, x, m, w);
  const int before = get_num_threads();
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    EXPECT_TRUE(same_bits(linear_of(kKernel, x, m, w), expected));
  }
  set_num_threads(before);
  EXPECT_TRUE(amx_is_released());
  for (const std::int64_t row : {0, 41}) {
    const auto alone = linear_of(kKernel, Bfloats(&x[row * k], &x[row * k] + k), 1, w);
    EXPECT_TRUE(same_bits(alone, {&expected[row * n], &expected[row * n] + n}));
  }
  Bfloats columns(x.size());
  for (std::int64_t i = 0; i < m * k; ++i) columns[i % k * m + i / k] = x[i];
  TensorView view(columns.data(), DType::bf16, {m, k});
  view.strides[0] = 1, view.strides[1] = m;
  std::vector<float> y(expected.size());
  ForceKernel force("linear", kKernel);
  linear(view, w, nullptr, TensorView(y.data(), DType::f32, {m, n}), computing(ComputeMode::floating));
  EXPECT_TRUE(same_bits(y, expected));
}

// Infinities and NaNs, the neighbors of a block's end among them, and values whose sums of codes overflow: infinite or
// NaN where the reference is, and elsewhere within the bound.
TEST_F(AmxBfloat, WhatIsNotFiniteIsTheReferences) {
  const float huge = std::ldexp(1.5f, 126), nan = std::numeric_limits<float>::quiet_NaN();
  const std::int64_t m = 34, n = 40;
  for (const Depth& depth : {Depth{200, 64}, Depth{325, 68}, Depth{96, 20}, Depth{2200, 64}})
    for (WeightCase form : kForms) {
      form.block_size = depth.block;
      const auto w = random_weight(n, depth.k, form);
      const Weights exact(w);
      auto values = normal_values(m * depth.k, 15);
      const float special[] = {kInfinity, -kInfinity, nan, huge, -huge};
      for (std::int64_t i = 0; i < m; ++i) {
        if (i % 6 == 5) continue;
        values[i * depth.k + i * depth.k / m] = special[i % 6];
        if (i % 6 > 2) values[i * depth.k + (i + 1) * depth.k / m - 1] = special[i / 6 % 2 + 3];
      }
      for (std::int64_t k = 0; k < depth.k; ++k) values[33 * depth.k + k] = k % 3 ? huge : -huge;
      const Bfloats x = bfloats(values);
      const auto y = linear_of(kKernel, x, m, w), reference = linear_of("reference", x, m, w);
      for (std::int64_t i = 0; i < m * n; ++i) {
        if (std::isfinite(reference[i])) {
          const Exact wanted = exact.product(&x[i / n * depth.k], i % n);
          ASSERT_LE(std::abs(y[i] - wanted.value), wanted.bound) << i;
        } else {
          ASSERT_TRUE(y[i] == reference[i] || (std::isnan(y[i]) && std::isnan(reference[i])))
              << y[i] << " and " << reference[i] << " at " << i << ", K " << depth.k;
        }
      }
    }
}

// Subnormal x, and sums below the least normal float, which count as zero.
TEST_F(AmxBfloat, TinyNumbersAreWithinTheirBound) {
  const std::int64_t m = 33, n = 20, k = 160;
  for (WeightCase form : kForms) {
    form.block_size = 32;
    const auto w = random_weight(n, k, form);
    auto values = normal_values(m * k, 16);
    for (std::int64_t i = 0; i < m * k; ++i) values[i] = std::ldexp(values[i], i / k % 3 ? -126 : -130);
    for (std::int64_t i = 0; i < k; ++i) values[32 * k + i] = i % 2 ? -1.1754944e-38f : 1.1846778e-38f;
    const Bfloats x = bfloats(values);
    EXPECT_TRUE(within_bound(linear_of(kKernel, x, m, w), x, Weights(w)));
  }
  const Bfloats tiny(static_cast<std::size_t>(m * k), 0x0041);
  const auto w = random_weight(n, k, {8, 32, Scheme::symmetric});
  for (const float y : linear_of(kKernel, tiny, m, w)) ASSERT_EQ(y, 0.0f);
}

TEST_F(AmxBfloat, GroupedLinearIsLinearOfEachExpert) {
  const std::int64_t counts[] = {20, 0, 33, 1}, n = 24, k = 96, m = 54;
  std::vector<QuantizedTensor> each;
  for (unsigned e = 0; e < 4; ++e) each.push_back(random_weight(n, k, {8, 32, Scheme::asymmetric}, 30 + e));
  const auto w = QuantizedTensor::concatenate(each.data(), 4);
  const Bfloats x = bfloats(normal_values(m * k, 6));
  Guarded<float> y(m * n);
  {
    ForceKernel force("grouped_linear", kKernel);
    grouped_linear(TensorView(x.data(), DType::bf16, {m, k}), w, TensorView(counts, DType::i64, {4}), nullptr,
                   TensorView(y.data(), DType::f32, {m, n}), computing(ComputeMode::floating));
  }
  EXPECT_TRUE(y.guards_intact());
  for (std::int64_t e = 0, row = 0; e < 4; row += counts[e++]) {
    if (!counts[e]) continue;
    const Bfloats rows(&x[row * k], &x[row * k] + counts[e] * k);
    EXPECT_TRUE(same_bits({&y[row * n], &y[row * n] + counts[e] * n}, linear_of(kKernel, rows, counts[e], each[e])));
  }
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

// Blocks of a tap are short, so that the bound of all products' magnitudes, from absolute values, holds by far.
TEST_F(AmxBfloat, Conv2dIsCloseToTheReference) {
  for (const Image& c : kImages) {
    const std::int64_t per_group = c.channels / c.window.groups;
    const auto values = normal_values(c.outputs * per_group * c.kernel * c.kernel, 3);
    const Bfloats x = bfloats(normal_values(2 * c.channels * c.height * c.width, 4));
    Bfloats magnitudes = x;
    for (std::uint16_t& value : magnitudes) value &= 0x7fff;
    const auto out = [&](std::int64_t input, int axis) {
      const std::int64_t span = c.window.dilation[axis] * (c.kernel - 1) + 1;
      return (input + c.window.padding[axis] + c.window.padding[axis + 2] - span) / c.window.stride[axis] + 1;
    };
    const std::int64_t height = out(c.height, 0), width = out(c.width, 1);
    Conv2dOptions options;
    options.window = c.window;
    options.compute = ComputeMode::floating;
    const auto run = [&](const char* kernel, const Bfloats& image, const QuantizedTensor& w) {
      ForceKernel force("conv2d", kernel);
      Guarded<float> y(2 * c.outputs * height * width);
      conv2d(TensorView(image.data(), DType::bf16, {2, c.channels, c.height, c.width}), w, nullptr,
             TensorView(y.data(), DType::f32, {2, c.outputs, height, width}), options);
      EXPECT_EQ(last_kernel("conv2d"), kernel);
      EXPECT_TRUE(y.guards_intact());
      return std::vector<float>(y.data(), y.data() + y.size());
    };
    for (const WeightCase& form : kForms) {
      const auto quantized = [&](const std::vector<float>& weights) {
        return QuantizedTensor::quantize(
            TensorView(weights.data(), DType::f32, {c.outputs, per_group, c.kernel, c.kernel}),
            {form.bits, c.block, form.scheme, Method::rtn});
      };
      const auto w = quantized(values);
      auto absolute = values;
      w.dequantize(TensorView(absolute.data(), DType::f32, {c.outputs, per_group, c.kernel, c.kernel}));
      for (float& value : absolute) value = std::abs(value) + 1;
      const auto y = run(kKernel, x, w), reference = run("reference", x, w);
      const auto magnitude = run("reference", magnitudes, quantized(absolute));
      for (std::size_t i = 0; i < y.size(); ++i)
        ASSERT_LE(std::abs(y[i] - reference[i]),
                  std::ldexp(magnitude[i], -22) * static_cast<float>(c.block + c.kernel * c.kernel))
            << i << ", channels " << c.channels << " bits " << form.bits;
    }
  }
}

TEST_F(AmxBfloat, IsChosenForManyRowsOfBfloatOnly) {
  const auto w = random_weight(16, 64, {});
  const auto run = [&](std::int64_t m, DType dtype) {
    const std::vector<float> x(static_cast<std::size_t>(m * 64));
    std::vector<float> y(static_cast<std::size_t>(m * 16));
    linear(TensorView(x.data(), dtype, {m, 64}), w, nullptr, TensorView(y.data(), DType::f32, {m, 16}),
           computing(ComputeMode::floating));
    return last_kernel("linear");
  };
  EXPECT_NE(run(15, DType::bf16), kKernel);
  EXPECT_EQ(run(16, DType::bf16), kKernel);
  EXPECT_EQ(run(32, DType::f32), "float_avx512");
  EXPECT_EQ(run(32, DType::f16), "float_avx512");
}

// Encoded weights: codes by a codebook, and codes that are made plain.
TEST_F(AmxBfloat, EncodedWeightsAreWithinTheBound) {
  const std::int64_t m = 35, n = 40, k = 320, g = 32;
  const Bfloats x = bfloats(normal_values(m * k, 21));
  for (const int bits : {3, 4, 6}) {
    WeightEncoding encoding;
    encoding.bits = bits;
    encoding.zero = 1 << (bits - 1);
    if (bits == 4) {
      encoding.has_codebook = true;
      for (int u = 0; u < 16; ++u) encoding.codebook[u] = static_cast<std::int8_t>(u * u - 113);
    }
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n * k));
    for (std::size_t i = 0; i < codes.size(); ++i)
      codes[i] = static_cast<std::uint8_t>((i * 2654435761u >> 13) % (1u << bits));
    Bfloats scales(static_cast<std::size_t>(n * k / g));
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint16_t>(0x2400 + 37 * i % 1024);
    EncodedParts parts;
    parts.codes = TensorView(codes.data(), DType::u8, {n, k});
    parts.scales = TensorView(scales.data(), DType::f16, {n, k / g});
    const auto w = QuantizedTensor::from_encoded(encoding, parts, g);
    EXPECT_TRUE(within_bound(linear_of(kKernel, x, m, w), x, Weights(w))) << bits;
  }
}

}  // namespace
}  // namespace qcore::test
