#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

#include "reference_results.h"
#include "support.h"

namespace qcore::test {
namespace {

struct Depth {
  std::int64_t k, block;
};

// Blocks that end between two steps of the packed layout, short last blocks, one block, blocks of one.
constexpr Depth kDepths[] = {{1, 16},   {31, 16},   {33, 32},   {64, 64},    {65, 1},
                             {100, 48}, {257, 128}, {130, 130}, {1000, 1000}};
constexpr std::int64_t kRows[] = {1, 2, 5, 7, 13};
constexpr std::int64_t kColumns[] = {1, 9, 16, 33, 65};
constexpr WeightCase kForms[] = {
    {4, 0, Scheme::symmetric}, {4, 0, Scheme::asymmetric}, {8, 0, Scheme::symmetric}, {8, 0, Scheme::asymmetric}};

std::string text_of(std::int64_t m, std::int64_t n, const Depth& depth, const WeightCase& form, ComputeMode compute) {
  std::ostringstream text;
  text << "M " << m << " N " << n << " K " << depth.k << " g " << depth.block << " bits " << form.bits
       << (form.scheme == Scheme::symmetric ? " symmetric" : " asymmetric") << " compute " << static_cast<int>(compute);
  return text.str();
}

TEST(Linear, EveryKernelGivesTheReferencesBits) {
  const auto names = available_cpu_kernels();
  for (const Depth& depth : kDepths)
    for (WeightCase form : kForms) {
      form.block_size = depth.block;
      for (const std::int64_t n : kColumns) {
        const auto w = random_weight(n, depth.k, form);
        const auto bias = normal_values(n, 11);
        const TensorView bias_view(bias.data(), DType::f32, {n});
        for (const std::int64_t m : kRows) {
          const auto x = normal_values(m * depth.k, 12);
          for (const ComputeMode compute : kComputes) {
            const auto expected = linear_on("reference", x, m, w, computing(compute), &bias_view);
            compare_with_unoptimized(expected);
            for (const std::string& kernel : names) {
              if (!takes(kernel, compute)) continue;
              ASSERT_TRUE(same_bits(linear_on(kernel, x, m, w, computing(compute), &bias_view), expected))
                  << kernel << " " << text_of(m, n, depth, form, compute);
            }
          }
        }
      }
    }
}

// A tile alone reads a weight as it is stored; several may share what one of them has made of it.
TEST(Linear, EveryNumberOfRowsGivesTheReferencesBits) {
  const std::int64_t n = 33;
  for (std::int64_t m = 1; m <= 20; ++m)
    for (const Depth& depth : {Depth{100, 36}, Depth{257, 128}, Depth{300, 300}})
      for (WeightCase form : kForms) {
        form.block_size = depth.block;
        const auto w = random_weight(n, depth.k, form);
        const auto x = normal_values(m * depth.k, 21);
        for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::int8_asym}) {
          const auto expected = linear_on("reference", x, m, w, computing(compute));
          for (const std::string& kernel : available_cpu_kernels()) {
            if (!takes(kernel, compute) || kernel == "reference") continue;
            EXPECT_TRUE(same_bits(linear_on(kernel, x, m, w, computing(compute)), expected))
                << kernel << " " << text_of(m, n, depth, form, compute);
          }
        }
      }
}

TEST(Linear, OutliersConstantsAndZerosGiveTheReferencesBits) {
  const std::int64_t m = 6, n = 20, k = 160;
  for (WeightCase form : kForms) {
    form.block_size = 32;
    auto weights = normal_values(n * k, 13);
    for (std::int64_t i = 0; i < n; ++i) {
      std::fill_n(&weights[i * k], 32, 0.25f * static_cast<float>(i));  // constant
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
    for (const ComputeMode compute : kComputes) {
      const auto expected = linear_on("reference", x, m, w, computing(compute));
      for (const std::string& kernel : available_cpu_kernels()) {
        if (!takes(kernel, compute)) continue;
        EXPECT_TRUE(same_bits(linear_on(kernel, x, m, w, computing(compute)), expected)) << kernel;
      }
    }
  }
}

// Tiles take long rows in several runs of blocks.
TEST(Linear, LongRowsGiveTheReferencesBits) {
  const std::int64_t n = 35;
  for (const Depth& depth : {Depth{4097, 64}, Depth{9000, 100}, Depth{20000, 4096}})
    for (WeightCase form : {kForms[1], kForms[2]}) {
      form.block_size = depth.block;
      const auto w = random_weight(n, depth.k, form);
      for (const std::int64_t m : {1, 7}) {
        const auto x = normal_values(m * depth.k, 20);
        for (const ComputeMode compute : kComputes) {
          const auto expected = linear_on("reference", x, m, w, computing(compute));
          for (const std::string& kernel : available_cpu_kernels()) {
            if (!takes(kernel, compute)) continue;
            EXPECT_TRUE(same_bits(linear_on(kernel, x, m, w, computing(compute)), expected))
                << kernel << " " << text_of(m, n, depth, form, compute);
          }
        }
      }
    }
}

// Codes at the ends of their ranges: the largest products and sums that can occur. Tiles of NEON convert sums otherwise
// for blocks of up to 128 codes of 8 bits and 2048 of 4 bits; 16 rows are several tiles.
TEST(Linear, ExtremeCodesGiveTheReferencesBits) {
  const std::int64_t n = 17;
  for (const auto& [depth, m] : std::vector<std::pair<Depth, std::int64_t>>{{{128, 128}, 7},
                                                                            {{256, 128}, 16},
                                                                            {{256, 256}, 7},
                                                                            {{512, 512}, 3},
                                                                            {{2048, 2048}, 16},
                                                                            {{4096, 4096}, 7},
                                                                            {{8192, 8192}, 3},
                                                                            {{65536, 65536}, 3}}) {
    for (const int bits : {4, 8}) {
      const int lowest = -(1 << (bits - 1));
      std::vector<std::int8_t> codes(n * depth.k, static_cast<std::int8_t>(lowest));
      for (std::int64_t i = 0; i < depth.k; ++i) codes[i] = static_cast<std::int8_t>(-lowest - 1);
      const std::int64_t blocks = depth.k / depth.block;
      const std::vector<float> ones(n * blocks, 1.0f);
      const TensorView parameters(ones.data(), DType::f32, {n, blocks});
      const auto w = QuantizedTensor::from_parts(TensorView(codes.data(), DType::i8, {n, depth.k}), parameters,
                                                 &parameters, bits, depth.block);
      std::vector<float> x(m * depth.k, 1.0f);
      for (std::int64_t row = 0; row < m; ++row)
        for (std::int64_t i = 0; i < depth.k; ++i)
          if (row % 3 == 0 || (row % 3 == 1 && i > 0)) x[row * depth.k + i] = -1.0f;
      for (const ComputeMode compute : kComputes) {
        const auto expected = linear_on("reference", x, m, w, computing(compute));
        for (const std::string& kernel : available_cpu_kernels()) {
          if (!takes(kernel, compute) || kernel == "reference") continue;
          EXPECT_TRUE(same_bits(linear_on(kernel, x, m, w, computing(compute)), expected))
              << kernel << " K " << depth.k;
        }
      }
    }
  }
}

TEST(Linear, BlocksBeyondTheKernelsGoToTheReference) {
  const std::int64_t k = 65537;
  const auto w = random_weight(1, k, {8, k, Scheme::symmetric});
  const auto x = normal_values(k, 15);
  float y = 0;
  linear(TensorView(x.data(), DType::f32, {1, k}), w, nullptr, TensorView(&y, DType::f32, {1, 1}),
         computing(ComputeMode::int16));
  EXPECT_EQ(last_kernel("linear"), "reference");
}

TEST(Linear, FloatComputeIsCloseToTheProduct) {
  const std::int64_t m = 3, n = 10, k = 100;
  const auto w = random_weight(n, k, {8, 32, Scheme::asymmetric});
  std::vector<float> weights(n * k);
  w.dequantize(TensorView(weights.data(), DType::f32, {n, k}));
  const auto x = normal_values(m * k, 16);
  const auto y = linear_on("reference", x, m, w, computing(ComputeMode::floating));
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) sum += static_cast<double>(x[i * k + l]) * weights[j * k + l];
      EXPECT_NEAR(y[i * n + j], sum, 1e-4);
    }
}

TEST(Linear, ThreadsDoNotChangeTheResult) {
  const std::int64_t m = 33, n = 130, k = 257;
  const int before = get_num_threads();
  const auto w = random_weight(n, k, {4, 64, Scheme::asymmetric});
  const auto x = normal_values(m * k, 17);
  for (const ComputeMode compute : kComputes)
    for (const std::string& kernel : available_cpu_kernels()) {
      if (!takes(kernel, compute)) continue;
      set_num_threads(1);
      const auto expected = linear_on(kernel, x, m, w, computing(compute));
      for (const int threads : {2, 4}) {
        set_num_threads(threads);
        EXPECT_TRUE(same_bits(linear_on(kernel, x, m, w, computing(compute)), expected)) << kernel << " on " << threads;
      }
    }
  set_num_threads(before);
}

TEST(Linear, NonFiniteActivationsMakeTheirRowNaN) {
  const std::int64_t m = 5, n = 35, k = 150;
  for (WeightCase form : kForms) {
    form.block_size = 64;
    const auto w = random_weight(n, k, form);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()})
      for (const std::int64_t at : {0, 63, 149}) {
        const auto good = normal_values(m * k, 18);
        auto x = good;
        x[2 * k + at] = bad;
        for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16})
          for (const std::string& kernel : available_cpu_kernels()) {
            if (!takes(kernel, compute)) continue;
            auto expected = linear_on(kernel, good, m, w, computing(compute));
            std::fill_n(&expected[2 * n], n, std::numeric_limits<float>::quiet_NaN());
            EXPECT_TRUE(same_bits(linear_on(kernel, x, m, w, computing(compute)), expected)) << kernel << " at " << at;
          }
      }
  }
}

TEST(Linear, NaNInFloatComputeIsNaN) {
  const std::int64_t n = 35, k = 150;
  const auto w = random_weight(n, k, {4, 64, Scheme::asymmetric});
  auto x = normal_values(k, 18);
  x[70] = std::numeric_limits<float>::quiet_NaN();
  for (const std::string& kernel : available_cpu_kernels()) {
    if (!takes(kernel, ComputeMode::floating)) continue;
    for (const float y : linear_on(kernel, x, 1, w, computing(ComputeMode::floating)))
      EXPECT_TRUE(std::isnan(y)) << kernel;
  }
}

double exact_activation(ActivationKind kind, double y) {
  switch (kind) {
    case ActivationKind::silu:
      return y / (1 + std::exp(-y));
    case ActivationKind::gelu:
      return 0.5 * y * (1 + std::erf(y / std::sqrt(2.0)));
    case ActivationKind::tanh:
      return std::tanh(y);
    case ActivationKind::sigmoid:
      return 1 / (1 + std::exp(-y));
    case ActivationKind::gelu_tanh:
      return 0.5 * y * (1 + std::tanh(std::sqrt(0.6366197723675814) * (y + 0.044715 * y * y * y)));
    default:
      return y;
  }
}

TEST(Linear, ActivationsKeepNaNAndAgree) {
  const std::int64_t m = 4, n = 37, k = 64;
  const float infinity = std::numeric_limits<float>::infinity();
  const auto w = random_weight(n, k, {8, 32, Scheme::symmetric});
  auto x = normal_values(m * k, 19);
  x[k + 3] = std::numeric_limits<float>::quiet_NaN();
  for (const FusedActivation& activation :
       {FusedActivation{ActivationKind::clamp, 0.0f, infinity}, FusedActivation{ActivationKind::clamp, 0.0f, 6.0f},
        FusedActivation{ActivationKind::clamp, -1.0f, 1.0f}, FusedActivation{ActivationKind::silu, 0.0f, 0.0f},
        FusedActivation{ActivationKind::gelu, 0.0f, 0.0f}, FusedActivation{ActivationKind::tanh, 0.0f, 0.0f},
        FusedActivation{ActivationKind::sigmoid, 0.0f, 0.0f}, FusedActivation{ActivationKind::gelu_tanh, 0.0f, 0.0f}})
    for (const ComputeMode compute : kComputes) {
      LinearOptions options = computing(compute);
      options.activation = activation;
      const auto plain = linear_on("reference", x, m, w, computing(compute));
      const auto expected = linear_on("reference", x, m, w, options);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        if (std::isnan(plain[i])) {
          EXPECT_TRUE(std::isnan(expected[i]));
        } else if (activation.kind == ActivationKind::clamp) {
          EXPECT_EQ(expected[i], std::min(std::max(plain[i], activation.lo), activation.hi));
        } else {
          const double exact = exact_activation(activation.kind, plain[i]);
          EXPECT_NEAR(expected[i], exact, 1e-6 * (1 + std::abs(exact)));
        }
      }
      for (const std::string& kernel : available_cpu_kernels()) {
        if (!takes(kernel, compute)) continue;
        EXPECT_TRUE(same_bits(linear_on(kernel, x, m, w, options), expected)) << kernel;
      }
    }
}

// Sums in the middle between two floats, almost there, below the least normal float and above the greatest one: a
// kernel without a fused multiply-add must not round twice. Sums that are exact in double, and those that are not
// because of earlier ones.
TEST(Linear, FloatSumsBetweenTwoFloatsAreRoundedOnce) {
  const std::int64_t m = 160, n = 33, k = 192, g = 48, blocks = 4;
  std::mt19937 engine(7);
  const auto number = [&](int count) { return static_cast<int>(engine() % static_cast<unsigned>(count)); };
  // One, a little more or a little less, times a power of 2.
  const auto near = [&](int exponent, int last_bit) {
    return std::ldexp(1.0f + static_cast<float>(number(7) - 3) * std::ldexp(1.0f, last_bit), exponent);
  };
  const auto one_of = [&](std::initializer_list<int> exponents) {
    return *(exponents.begin() + number(static_cast<int>(exponents.size())));
  };
  std::vector<std::int8_t> codes(n * k);
  std::vector<float> scales, offsets, x;
  for (std::int8_t& code : codes) code = static_cast<std::int8_t>(number(9) ? 2 * number(2) - 1 : number(256) - 128);
  for (std::int64_t i = 0; i < n * blocks; ++i) {
    const int kind = static_cast<int>(i % blocks);
    scales.push_back(kind == 0 ? near(0, -23) : kind == 1 ? near(0, -15) : kind == 2 ? near(-30, -15) : near(0, -12));
    offsets.push_back(number(5) ? 0.0f : near(0, -23));
  }
  for (std::int64_t i = 0; i < m * k; ++i) {
    const int kind = static_cast<int>(i / k % 8), block = static_cast<int>(i % k / g), place = static_cast<int>(i % g);
    const float sign = number(2) ? 1.0f : -1.0f, any = near(one_of({0, -23, -24, -24, -25, -48, -72}), -23);
    const auto value = [&] {
      switch (kind) {
        case 0:
          return any;
        case 1:
          return near(one_of({0, -24, -24, -25}), -15);
        case 2:  // a subnormal sum, and half of the last bit of its float
          return block != 2 || place > 1 ? 0.0f : place ? near(-120, -15) : near(-97, -22);
        case 3:
          return std::ldexp(static_cast<float>(number(200)), -5);
        case 4:  // a middle between two floats, less or more than which is what was added before
          return place < 12 ? std::ldexp(1.0f, -60) : place > 12 ? 0.0f : near(0, -12);
        case 5:
          return std::ldexp(any, 127);
        case 6:
          return std::ldexp(static_cast<float>(number(200)), -146);
        default:
          return std::ldexp(any, -125);
      }
    };
    x.push_back(sign * value());
  }
  x[8 * k + 60] = std::numeric_limits<float>::infinity();
  const TensorView codes_view(codes.data(), DType::i8, {n, k}), scales_view(scales.data(), DType::f32, {n, blocks});
  const TensorView offsets_view(offsets.data(), DType::f32, {n, blocks});
  for (const TensorView* given : {static_cast<const TensorView*>(nullptr), &offsets_view}) {
    const auto w = QuantizedTensor::from_parts(codes_view, scales_view, given, 8, g);
    const auto expected = linear_on("reference", x, m, w, computing(ComputeMode::floating));
    for (const std::string& kernel : available_cpu_kernels()) {
      if (!takes(kernel, ComputeMode::floating)) continue;
      EXPECT_TRUE(same_bits(linear_on(kernel, x, m, w, computing(ComputeMode::floating)), expected)) << kernel;
      const std::vector<float> few(x.begin(), x.begin() + 3 * k);
      EXPECT_TRUE(same_bits(linear_on(kernel, few, 3, w, computing(ComputeMode::floating)),
                            {expected.begin(), expected.begin() + 3 * n}))
          << kernel;
    }
  }
}

// Their sums are in another order than the reference's: within the bound of both.
TEST(Linear, ProductsOfBfloatAreWithinTheBound) {
  std::vector<std::string> names;
  for (const std::string& name : available_cpu_kernels())
    if (takes_bfloat_only(name)) names.push_back(name);
  if (names.empty()) GTEST_SKIP() << "no products of bf16 here";
  const std::int64_t m = 7, n = 37, k = 333, g = 48;
  std::vector<std::uint16_t> x;
  for (const float value : normal_values(m * k, 31)) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    x.push_back(static_cast<std::uint16_t>(bits >> 16));
  }
  for (WeightCase form : kForms) {
    form.block_size = g;
    const auto w = random_weight(n, k, form);
    std::vector<float> weights(n * k), y(m * n);
    w.dequantize(TensorView(weights.data(), DType::f32, {n, k}));
    for (const std::string& kernel : names) {
      ForceKernel force("linear", kernel);
      linear(TensorView(x.data(), DType::bf16, {m, k}), w, nullptr, TensorView(y.data(), DType::f32, {m, n}),
             computing(ComputeMode::floating));
      EXPECT_EQ(last_kernel("linear"), kernel);
      for (std::int64_t i = 0; i < m * n; ++i) {
        double exact = 0, magnitude = 0;
        for (std::int64_t l = 0; l < k; ++l) {
          const std::uint32_t bits = static_cast<std::uint32_t>(x[i / n * k + l]) << 16;
          float value;
          std::memcpy(&value, &bits, sizeof(value));
          exact += static_cast<double>(value) * weights[i % n * k + l];
          magnitude += std::abs(static_cast<double>(value)) * (std::abs(weights[i % n * k + l]) + 1);
        }
        EXPECT_NEAR(y[i], exact, 4 * ((k + g - 1) / g + g) * std::ldexp(magnitude, -24)) << kernel << " " << i;
      }
    }
  }
}

// Named so that it is the last of this suite: the tests above must have run every kernel that the machine has.
TEST(Linear, ZEveryAvailableKernelRan) {
  for (const KernelInfo& row : kernels("linear")) {
    if (row.device != "cpu") continue;
#if defined(QCORE_AVXVNNI_AS_EVEX)
    if (row.name == "int8_avxvnni" || row.name == "int16_avxvnni") {
      EXPECT_TRUE(row.available) << "this build encodes " << row.name << " for AVX-512 VNNI, and the machine lacks it";
    }
#endif
    std::cout << "linear/" << row.name << ": " << (row.available ? std::to_string(row.runs) + " runs" : "not available")
              << std::endl;
    EXPECT_TRUE(!row.available || row.runs > 0) << row.name << " is available and no test ran it";
  }
}

}  // namespace
}  // namespace qcore::test
