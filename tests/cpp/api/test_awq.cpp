#include <cmath>
#include <functional>
#include <thread>

#include "numerics/awq.h"
#include "support.h"

// AWQ's weights through the public API: every kernel against the layout's definition, element by element.
namespace qcore::test {
namespace {

std::vector<std::string> available(const char* op) {
  std::vector<std::string> names;
  for (const KernelInfo& row : kernels(op))
    if (row.available && row.device == "cpu") names.push_back(row.name);
  return names;
}

// Random codes and zeros, scales of both signs.
struct AwqArrays {
  std::int64_t k, n, group_size;
  std::vector<std::int32_t> qweight, qzeros;
  std::vector<std::uint16_t> scales;

  AwqArrays(std::int64_t k_, std::int64_t n_, std::int64_t g, unsigned seed = 1) : k(k_), n(n_), group_size(g) {
    std::mt19937 engine(seed);
    for (std::int64_t i = 0; i < k * words(); ++i) qweight.push_back(static_cast<std::int32_t>(engine()));
    for (std::int64_t i = 0; i < groups() * words(); ++i) qzeros.push_back(static_cast<std::int32_t>(engine()));
    for (const float value : normal_values(groups() * n, seed)) scales.push_back(numerics::float_to_half(value / 8));
  }

  std::int64_t words() const { return n / 8; }
  std::int64_t groups() const { return k / group_size; }
  TensorView qweight_view() const { return TensorView(qweight.data(), DType::i32, {k, words()}); }
  TensorView scales_view() const { return TensorView(scales.data(), DType::f16, {groups(), n}); }
  TensorView qzeros_view() const { return TensorView(qzeros.data(), DType::i32, {groups(), words()}); }
  AwqDescriptor descriptor() const { return AwqDescriptor::create(qweight_view(), scales_view(), qzeros_view()); }

  // Returns a code: column n is nibble (n % 8) / 2 + 4 * (n % 2) of its word.
  static int code(const std::vector<std::int32_t>& from, std::int64_t at, std::int64_t column) {
    const auto nibble = column % 8 / 2 + 4 * (column % 2);
    return static_cast<int>(static_cast<std::uint32_t>(from[at]) >> 4 * nibble & 15u);
  }
  // (u - z) * s, exact.
  float weight(std::int64_t row, std::int64_t column) const {
    const std::int64_t group = row / group_size;
    const int u = code(qweight, row * words() + column / 8, column);
    const int z = code(qzeros, group * words() + column / 8, column);
    return static_cast<float>(u - z) * numerics::half_to_float(scales[group * n + column]);
  }
};

struct Shape {
  std::int64_t k, n, group_size;
};
constexpr Shape kShapes[] = {{1, 8, 1}, {12, 24, 3}, {64, 8, 64}, {96, 136, 32}, {256, 520, 128}, {33, 64, 11}};

TEST(Awq, DescriptorKnowsItsSizes) {
  const AwqArrays arrays(96, 40, 32);
  const AwqDescriptor descriptor = arrays.descriptor();
  EXPECT_EQ(descriptor.features(), 96);
  EXPECT_EQ(descriptor.columns(), 40);
  EXPECT_EQ(descriptor.group_size(), 32);
  EXPECT_EQ(descriptor.device(), kCpu);
}

TEST(Awq, EveryKernelGivesTheReferencesBits) {
  for (const Shape& shape : kShapes) {
    const AwqArrays arrays(shape.k, shape.n, shape.group_size);
    const AwqDescriptor descriptor = arrays.descriptor();
    for (const std::string& kernel : available("awq")) {
      const ForceKernel force("awq", kernel);
      Guarded<std::uint16_t> straight(shape.k * shape.n), turned(shape.k * shape.n);
      descriptor.dequantize(TensorView(straight.data(), DType::f16, {shape.k, shape.n}));
      EXPECT_EQ(last_kernel("awq"), kernel);
      descriptor.dequantize(TensorView(turned.data(), DType::f16, {shape.n, shape.k}), true);
      for (std::int64_t k = 0; k < shape.k; ++k)
        for (std::int64_t n = 0; n < shape.n; ++n) {
          const std::uint16_t expected = numerics::float_to_half(arrays.weight(k, n));
          ASSERT_EQ(straight[k * shape.n + n], expected) << kernel << ", k " << k << ", n " << n;
          ASSERT_EQ(turned[n * shape.k + k], expected) << kernel << ", k " << k << ", n " << n;
        }
      EXPECT_TRUE(straight.guards_intact() && turned.guards_intact()) << kernel;
    }
  }
}

TEST(Awq, StridesAreFollowed) {
  const AwqArrays arrays(48, 32, 16);
  const std::int64_t words = arrays.words();
  // Every second word of every row, rows from the last to the first.
  std::vector<std::int32_t> spread(2 * 48 * words);
  for (std::int64_t k = 0; k < 48; ++k)
    for (std::int64_t w = 0; w < words; ++w) spread[2 * ((47 - k) * words + w)] = arrays.qweight[k * words + w];
  TensorView qweight(spread.data() + 2 * 47 * words, DType::i32, {48, words});
  qweight.strides[0] = -2 * words;
  qweight.strides[1] = 2;
  const AwqDescriptor descriptor = AwqDescriptor::create(qweight, arrays.scales_view(), arrays.qzeros_view());
  Guarded<std::uint16_t> out(3 * 48 * 32);
  TensorView view(out.data(), DType::f16, {48, 32});
  view.strides[0] = 3 * 32;
  view.strides[1] = 3;
  descriptor.dequantize(view);
  for (std::int64_t i = 0; i < 48 * 32; ++i) {
    EXPECT_EQ(out[3 * i], numerics::float_to_half(arrays.weight(i / 32, i % 32)));
    EXPECT_TRUE(out.poisoned(3 * i + 1) && out.poisoned(3 * i + 2));
  }
}

// y of x [m, K] in float64, and the sum of the magnitudes that its rounding errors are proportional to.
struct Product {
  double value, magnitude;
};
Product product_of(const AwqArrays& arrays, const float* x, std::int64_t n) {
  Product found{0, 0};
  for (std::int64_t k = 0; k < arrays.k; ++k) {
    const std::int64_t group = k / arrays.group_size;
    const double scale = numerics::half_to_float(arrays.scales[group * arrays.n + n]);
    found.value += static_cast<double>(x[k]) * arrays.weight(k, n);
    // linear() sums codes around 8 and zeros around 8 apart.
    found.magnitude += 16 * std::abs(x[k] * scale);
  }
  return found;
}

TEST(Awq, LinearIsTheProductOnEveryKernel) {
  for (const Shape& shape : kShapes) {
    const AwqArrays arrays(shape.k, shape.n, shape.group_size, 3);
    const AwqDescriptor descriptor = arrays.descriptor();
    const auto bias = normal_values(shape.n, 9);
    const TensorView bias_view(bias.data(), DType::f32, {shape.n});
    // From few rows, which kernels of awq_linear take, to those that go by way of linear().
    for (const std::int64_t m : {1, 2, 5, 40})
      for (const std::string& kernel : available("awq_linear")) {
        const ForceKernel force("awq_linear", kernel);
        const auto x = normal_values(m * shape.k, 4);
        Guarded<float> y(m * shape.n), with_bias(m * shape.n);
        const TensorView x_view(x.data(), DType::f32, {m, shape.k});
        descriptor.linear(x_view, nullptr, TensorView(y.data(), DType::f32, {m, shape.n}));
        if (m == 1) {
          EXPECT_EQ(last_kernel("awq_linear"), kernel);
        }
        descriptor.linear(x_view, &bias_view, TensorView(with_bias.data(), DType::f32, {m, shape.n}));
        for (std::int64_t i = 0; i < m * shape.n; ++i) {
          const Product expected = product_of(arrays, x.data() + i / shape.n * shape.k, i % shape.n);
          const double allowed = 1e-6 * (expected.magnitude + 1);
          ASSERT_NEAR(y[i], expected.value, allowed) << kernel << ", m " << m << ", element " << i;
          ASSERT_NEAR(with_bias[i], expected.value + bias[i % shape.n], allowed) << kernel;
        }
        EXPECT_TRUE(y.guards_intact() && with_bias.guards_intact()) << kernel;
      }
  }
}

TEST(Awq, LinearTakesHalvesAndMoreAxes) {
  const AwqArrays arrays(64, 16, 32, 5);
  const AwqDescriptor descriptor = arrays.descriptor();
  std::vector<std::uint16_t> x;
  std::vector<float> exact;
  for (const float value : normal_values(2 * 3 * 64, 6)) {
    x.push_back(numerics::float_to_half(value));
    exact.push_back(numerics::half_to_float(x.back()));
  }
  std::vector<float> floats(6 * 16);
  Guarded<std::uint16_t> halves(6 * 16);
  const TensorView x_view(x.data(), DType::f16, {2, 3, 64});
  descriptor.linear(x_view, nullptr, TensorView(floats.data(), DType::f32, {2, 3, 16}));
  descriptor.linear(x_view, nullptr, TensorView(halves.data(), DType::f16, {2, 3, 16}));
  for (std::int64_t i = 0; i < 6 * 16; ++i) {
    const Product expected = product_of(arrays, exact.data() + i / 16 * 64, i % 16);
    EXPECT_NEAR(floats[i], expected.value, 1e-6 * (expected.magnitude + 1));
    EXPECT_EQ(halves[i], numerics::float_to_half(floats[i]));
  }
  EXPECT_TRUE(halves.guards_intact());
  descriptor.linear(TensorView(x.data(), DType::f16, {0, 64}), nullptr, TensorView(halves.data(), DType::f16, {0, 16}));
}

TEST(Awq, PackedIsTheSameWeight) {
  const AwqArrays arrays(96, 40, 32);
  const QuantizedTensor packed = arrays.descriptor().pack();
  EXPECT_EQ(packed.rows(), 40);
  EXPECT_EQ(packed.features(), 96);
  EXPECT_EQ(packed.block_size(), 32);
  EXPECT_EQ(packed.bits(), 4);
  std::vector<float> values(96 * 40);
  packed.dequantize(TensorView(values.data(), DType::f32, {40, 96}));
  for (std::int64_t n = 0; n < 40; ++n)
    for (std::int64_t k = 0; k < 96; ++k) EXPECT_EQ(values[n * 96 + k], arrays.weight(k, n));
}

TEST(Awq, OneDescriptorServesManyThreads) {
  if (!has_threads()) GTEST_SKIP() << "no threads";
  const AwqArrays arrays(128, 64, 32, 7);
  const AwqDescriptor descriptor = arrays.descriptor();
  const auto x = normal_values(128, 8);
  const TensorView x_view(x.data(), DType::f32, {1, 128});
  std::vector<std::uint16_t> expected(128 * 64);
  std::vector<float> expected_y(64);
  descriptor.dequantize(TensorView(expected.data(), DType::f16, {128, 64}));
  descriptor.linear(x_view, nullptr, TensorView(expected_y.data(), DType::f32, {1, 64}));

  constexpr int kThreads = 4;
  int failures[kThreads] = {};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      const AwqDescriptor& shared = descriptor;
      for (int round = 0; round < 20; ++round) {
        std::vector<std::uint16_t> out(128 * 64);
        std::vector<float> y(64);
        shared.dequantize(TensorView(out.data(), DType::f16, {128, 64}));
        shared.linear(x_view, nullptr, TensorView(y.data(), DType::f32, {1, 64}));
        failures[thread] += out != expected || !same_bits(y, expected_y);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const int count : failures) EXPECT_EQ(count, 0);
}

TEST(Awq, CreateNamesTheBadArgument) {
  const AwqArrays arrays(64, 16, 32);
  const TensorView qweight = arrays.qweight_view(), scales = arrays.scales_view(), qzeros = arrays.qzeros_view();
  const auto value_error = [](const TensorView& w, const TensorView& s, const TensorView& z) {
    return error_of<ValueError>([&] { AwqDescriptor::create(w, s, z, "op"); });
  };
  const auto type_error = [](const TensorView& w, const TensorView& s, const TensorView& z) {
    return error_of<TypeError>([&] { AwqDescriptor::create(w, s, z, "op"); });
  };
  const auto shaped = [](TensorView view, std::int64_t rows, std::int64_t columns) {
    view.shape[0] = rows;
    view.shape[1] = columns;
    return view;
  };
  const TensorView floats(arrays.qweight.data(), DType::f32, {64, 2});
  EXPECT_EQ(type_error(floats, scales, qzeros), "op: qweight has dtype float32, expected int32");
  EXPECT_EQ(type_error(qweight, floats, qzeros), "op: scales has dtype float32, expected float16");
  EXPECT_EQ(type_error(qweight, scales, floats), "op: qzeros has dtype float32, expected int32");
  EXPECT_EQ(value_error(shaped(qweight, 0, 2), scales, qzeros),
            "op: qweight has shape [0, 2], expected [K, N/8] with both at least 1");
  EXPECT_EQ(value_error(TensorView(arrays.qweight.data(), DType::i32, {128}), scales, qzeros),
            "op: qweight has shape [128], expected [K, N/8] with both at least 1");
  EXPECT_EQ(value_error(qweight, shaped(scales, 2, 15), qzeros),
            "op: scales has shape [2, 15], expected [K/g, N] with N = 8 * 2 = 16 of qweight [64, 2]");
  EXPECT_EQ(value_error(qweight, shaped(scales, 0, 16), qzeros),
            "op: scales has shape [0, 16], expected [K/g, N] with K/g a divisor of K = 64");
  EXPECT_EQ(value_error(shaped(qweight, 63, 2), scales, qzeros),
            "op: scales has shape [2, 16], expected [K/g, N] with K/g a divisor of K = 63");
  EXPECT_EQ(value_error(qweight, scales, shaped(qzeros, 1, 2)), "op: qzeros has shape [1, 2], expected [2, 2]");
}

TEST(Awq, BadArgumentsWriteNothing) {
  const AwqArrays arrays(64, 16, 32);
  const AwqDescriptor descriptor =
      AwqDescriptor::create(arrays.qweight_view(), arrays.scales_view(), arrays.qzeros_view(), "op");
  Guarded<std::uint16_t> out(64 * 16);
  const auto x = normal_values(2 * 64, 2);
  const TensorView x_view(x.data(), DType::f32, {2, 64}), y(out.data(), DType::f16, {2, 16});
  const auto value_error = [](const std::function<void()>& call) { return error_of<ValueError>(call); };

  EXPECT_EQ(value_error([&] { descriptor.dequantize(TensorView(out.data(), DType::f16, {16, 64})); }),
            "op: out has shape [16, 64], expected [64, 16]");
  EXPECT_EQ(value_error([&] { descriptor.dequantize(TensorView(out.data(), DType::f16, {64, 16}), true); }),
            "op: out has shape [64, 16], expected [16, 64]");
  EXPECT_EQ(error_of<TypeError>([&] { descriptor.dequantize(TensorView(out.data(), DType::bf16, {64, 16})); }),
            "op: out has dtype bfloat16, expected float16");
  TensorView read_only(out.data(), DType::f16, {64, 16});
  read_only.read_only = true;
  EXPECT_EQ(value_error([&] { descriptor.dequantize(read_only); }), "op: out is read-only, expected a writable array");
  TensorView overlapping(out.data(), DType::f16, {64, 16});
  overlapping.strides[0] = 0;
  EXPECT_EQ(value_error([&] { descriptor.dequantize(overlapping); }),
            "op: out with shape [64, 16] and strides [0, 1] has elements that share memory, expected each to have its "
            "own");
  AwqArrays shared = arrays;
  const AwqDescriptor of_shared =
      AwqDescriptor::create(shared.qweight_view(), shared.scales_view(), shared.qzeros_view(), "op");
  const TensorView scales_as_y(shared.scales.data(), DType::f16, {2, 16});
  EXPECT_EQ(value_error([&] { of_shared.linear(x_view, nullptr, scales_as_y); }),
            "op: out overlaps scales in memory, expected separate arrays");
  EXPECT_EQ(shared.scales, arrays.scales);

  EXPECT_EQ(value_error([&] { descriptor.linear(TensorView(x.data(), DType::f32, {2, 60}), nullptr, y); }),
            "op: x has shape [2, 60], expected [..., K] with K = 64 of qweight [64, 2]");
  EXPECT_EQ(error_of<TypeError>([&] { descriptor.linear(TensorView(x.data(), DType::i32, {2, 64}), nullptr, y); }),
            "op: x has dtype int32, expected float32, float16 or bfloat16");
  EXPECT_EQ(value_error([&] { descriptor.linear(x_view, nullptr, TensorView(out.data(), DType::f16, {2, 15})); }),
            "op: out has shape [2, 15], expected [2, 16]");
  const TensorView short_bias(x.data(), DType::f32, {15});
  EXPECT_EQ(value_error([&] { descriptor.linear(x_view, &short_bias, y); }), "op: bias has shape [15], expected [16]");
  for (std::int64_t i = 0; i < out.size(); ++i) ASSERT_TRUE(out.poisoned(i)) << i;
  EXPECT_TRUE(out.guards_intact());
}

TEST(Awq, AScaleThatIsNotFiniteCannotBePacked) {
  AwqArrays arrays(64, 16, 32);
  arrays.scales[17] = 0x7c00;
  const std::string text = error_of<ValueError>([&] { arrays.descriptor().pack(); });
  EXPECT_EQ(text.find("awq: scales"), 0u) << text;
  std::vector<std::uint16_t> out(64 * 16);
  arrays.descriptor().dequantize(TensorView(out.data(), DType::f16, {64, 16}));
  EXPECT_EQ(out[32 * 16 + 1], numerics::float_to_half(arrays.weight(32, 1)));
}

}  // namespace
}  // namespace qcore::test
