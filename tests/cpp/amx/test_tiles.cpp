#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <thread>

#include "emulator.h"
#include "support.h"

// The kernels of AMX against the reference, on this processor's instructions or emulated ones.
namespace qcore::test {
namespace {

constexpr const char *kKernel = "int8_amx", *kWordKernel = "int16_amx";

const char* kernel_of(ComputeMode compute) { return compute == ComputeMode::int16 ? kWordKernel : kKernel; }

class Amx : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto names = available_cpu_kernels();
    if (!std::count(names.begin(), names.end(), kKernel)) GTEST_SKIP() << "the processor lacks AVX-512 VNNI";
  }
};

constexpr ComputeMode kModes[] = {ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16};
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
            ASSERT_TRUE(same_bits(linear_on(kernel_of(compute), x, m, w, options, &bias_view), expected))
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
  for (const std::int64_t layout : {0, 1, 2, 3}) {
    const std::int64_t column = 1 + layout % 2;
    const ComputeMode compute = layout < 2 ? ComputeMode::int8_asym : ComputeMode::int16;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      std::vector<std::uint16_t> halves(values.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        halves[i] = static_cast<std::uint16_t>(dtype == DType::f16 ? numerics::float_to_half(values[i])
                                                                   : numerics::float_to_bfloat(values[i]));
      TensorView x(dtype == DType::f32 ? static_cast<const void*>(values.data()) : halves.data(), dtype, {m, k});
      x.strides[0] = k * column + 7, x.strides[1] = column;
      std::vector<std::vector<std::uint8_t>> results;
      for (const char* kernel : {"reference", kernel_of(compute)}) {
        const std::int64_t item = dtype == DType::f32 ? 4 : 2, extent = m * (n * column + 3);
        Guarded<std::uint8_t> out(extent * item);
        TensorView y(out.data(), dtype, {m, n});
        y.strides[0] = n * column + 3, y.strides[1] = column;
        ForceKernel force("linear", kernel);
        linear(x, w, nullptr, y, computing(compute));
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
      EXPECT_TRUE(same_bits(linear_on(kernel_of(compute), x, m, w, computing(compute)),
                            linear_on("reference", x, m, w, computing(compute))));
  }
}

// A NaN or an infinity makes the results of its row NaN, and no others.
TEST_F(Amx, NotFiniteValuesGiveTheReferencesBits) {
  const std::int64_t m = 35, n = 20, k = 160;
  auto x = normal_values(m * k, 14);
  x[3 * k + 40] = std::numeric_limits<float>::quiet_NaN();
  x[17 * k] = std::numeric_limits<float>::infinity();
  x[34 * k + 159] = -std::numeric_limits<float>::infinity();
  for (WeightCase form : kForms) {
    form.block_size = 36;
    const auto w = random_weight(n, k, form);
    for (const ComputeMode compute : kModes) {
      const auto y = linear_on(kernel_of(compute), x, m, w, computing(compute));
      EXPECT_TRUE(same_bits(y, linear_on("reference", x, m, w, computing(compute))));
      for (std::int64_t i = 0; i < m * n; ++i)
        EXPECT_EQ(std::isnan(y[i]), i / n == 3 || i / n == 17 || i / n == 34) << "element " << i;
    }
  }
}

struct Codes {
  std::vector<std::int16_t> x;
  std::vector<std::int8_t> w;
};

// Codes of 16 bits as they are, with scales of 1: rows and columns of the extremes, and of what has either byte 0 or
// all ones, so that sums reach their bounds. All but the first ones differ in one code, so that rounding decides.
Codes extreme_codes(std::int64_t m, std::int64_t n, std::int64_t k, int bits) {
  constexpr std::int16_t kWords[] = {-32768, 32767, 255, -256, -1, 256, 128, -32513};
  const int lowest = -(1 << (bits - 1));
  const int bytes[] = {lowest, -lowest - 1, 1, -1};
  Codes codes{std::vector<std::int16_t>(static_cast<std::size_t>(m * k)),
              std::vector<std::int8_t>(static_cast<std::size_t>(n * k))};
  for (std::int64_t i = 0; i < m * k; ++i) codes.x[i] = kWords[i / k % 8];
  for (std::int64_t i = 0; i < n * k; ++i) codes.w[i] = static_cast<std::int8_t>(bytes[i / k % 4]);
  for (std::int64_t i = 8; i < m; ++i) codes.x[i * k + k / 2] = static_cast<std::int16_t>(3 * i);
  for (std::int64_t i = 4; i < n; ++i) codes.w[i * k + k / 3] = static_cast<std::int8_t>(i % 7 - 3);
  return codes;
}

// The largest sums that 32 bits hold and the first that they do not; and the longest block of a tile, whose products of
// lower bytes come next to 2^31. Blocks that end within a register, and rows of several blocks.
TEST_F(Amx, WordsOfExtremeCodesAreSummedExactly) {
  constexpr Depth kExtremes[] = {{511, 511}, {512, 512}, {513, 513}, {1030, 515}, {1500, 508}, {65536, 65536}};
  const std::int64_t m = 19, n = 9;
  for (const int bits : {4, 8})
    for (const Depth& depth : kExtremes) {
      const std::int64_t k = depth.k, blocks = (k + depth.block - 1) / depth.block;
      Codes codes = extreme_codes(m, n, k, bits);
      const std::vector<float> ones(static_cast<std::size_t>(std::max(m, n) * blocks), 1.0f);
      const auto w =
          QuantizedTensor::from_parts(TensorView(codes.w.data(), DType::i8, {n, k}),
                                      TensorView(ones.data(), DType::f32, {n, blocks}), nullptr, bits, depth.block);
      QuantizedActivations x;
      x.codes = TensorView(codes.x.data(), DType::i16, {m, k});
      x.scales = TensorView(ones.data(), DType::f32, {m, blocks});
      x.block_size = depth.block;
      x.mode = ComputeMode::int16;
      const ForceKernel force("linear", kWordKernel);
      Guarded<float> y(m * n);
      linear(x, w, nullptr, TensorView(y.data(), DType::f32, {m, n}), LinearOptions{});
      EXPECT_EQ(last_kernel("linear"), kWordKernel);
      EXPECT_TRUE(y.guards_intact());
      for (std::int64_t i = 0; i < m * n; ++i) {
        float expected = 0.0f;
        for (std::int64_t p = 0; p < blocks; ++p) {
          std::int64_t sum = 0;
          for (std::int64_t j = p * depth.block; j < std::min(k, (p + 1) * depth.block); ++j)
            sum += std::int64_t{codes.x[i / n * k + j]} * codes.w[i % n * k + j];
          expected += static_cast<float>(sum);
        }
        ASSERT_EQ(bits_of(y.data()[i]), bits_of(expected))
            << "K " << k << " g " << depth.block << " bits " << bits << " row " << i / n << " column " << i % n;
      }
    }
}

TEST_F(Amx, GroupedLinearGivesTheReferencesBits) {
  const std::int64_t counts[] = {20, 0, 33, 1}, n = 24, k = 96, m = 54;
  std::vector<QuantizedTensor> each;
  for (unsigned e = 0; e < 4; ++e) each.push_back(random_weight(n, k, {8, 32, Scheme::symmetric}, 30 + e));
  const auto w = QuantizedTensor::concatenate(each.data(), 4);
  const auto x = normal_values(m * k, 6);
  for (const ComputeMode compute : kModes) {
    std::vector<std::vector<float>> results;
    for (const char* kernel : {"reference", kernel_of(compute)}) {
      ForceKernel force("grouped_linear", kernel);
      Guarded<float> y(m * n);
      grouped_linear(TensorView(x.data(), DType::f32, {m, k}), w, TensorView(counts, DType::i64, {4}), nullptr,
                     TensorView(y.data(), DType::f32, {m, n}), computing(compute));
      EXPECT_TRUE(y.guards_intact());
      results.emplace_back(y.data(), y.data() + y.size());
    }
    EXPECT_TRUE(same_bits(results[0], results[1])) << "compute " << static_cast<int>(compute);
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
        for (const char* kernel : {"reference", kernel_of(compute)}) {
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
  const auto run = [&](std::int64_t m, ComputeMode compute) {
    const auto x = normal_values(m * 64, 2);
    std::vector<float> y(static_cast<std::size_t>(m * 16));
    linear(TensorView(x.data(), DType::f32, {m, 64}), w, nullptr, TensorView(y.data(), DType::f32, {m, 16}),
           computing(compute));
    return last_kernel("linear");
  };
  EXPECT_EQ(run(31, ComputeMode::int8), "int8_avx512vnni");
  EXPECT_EQ(run(32, ComputeMode::int8), kKernel);
  EXPECT_EQ(run(15, ComputeMode::int16), "int16_avx512vnni");
  EXPECT_EQ(run(16, ComputeMode::int16), kWordKernel);
}

// Every task configures the registers once, and releases them.
TEST_F(Amx, ThreadsReleaseTheRegisters) {
  const std::int64_t m = 96, n = 128, k = 128;
  const auto w = random_weight(n, k, {8, 64, Scheme::symmetric});
  const auto x = normal_values(m * k, 2);
  const int before = get_num_threads();
  for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::int16}) {
    set_num_threads(3);
    const AmxCounts start = amx_counts();
    const auto y = linear_on(kernel_of(compute), x, m, w, computing(compute));
    const AmxCounts end = amx_counts();
    set_num_threads(before);
    EXPECT_TRUE(same_bits(y, linear_on("reference", x, m, w, computing(compute))));
    EXPECT_TRUE(amx_is_released());
    EXPECT_EQ(end.releases - start.releases, end.configurations - start.configurations);
    if (end.loads == 0) continue;  // the processor has AMX
    EXPECT_GT(end.releases, start.releases);
    const std::uint64_t planes = compute == ComputeMode::int16 ? 2 : 1;
    EXPECT_EQ(end.products - start.products, planes * 6 * 8 * 2);  // 16 rows, 16 columns and 64 k each
    EXPECT_EQ(end.stores - start.stores, planes * 6 * 8 * 2);
  }
}

}  // namespace
}  // namespace qcore::test
