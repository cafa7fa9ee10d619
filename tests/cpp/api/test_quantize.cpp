#include <cmath>
#include <limits>

#include "reference_results.h"
#include "support.h"

namespace qcore::test {
namespace {

struct Parts {
  std::vector<std::int8_t> codes;
  std::vector<float> scales, offsets;
};

Parts parts_of(const QuantizedTensor& w) {
  const std::int64_t n = w.rows(), k = w.features(), p = w.blocks();
  Parts parts{std::vector<std::int8_t>(n * k * w.taps()), std::vector<float>(n * p), std::vector<float>(n * p)};
  TensorView codes(parts.codes.data(), DType::i8, {n, k});
  codes.rank = w.rank();
  std::int64_t stride = 1;
  for (int axis = w.rank() - 1; axis >= 0; --axis) {
    codes.shape[axis] = w.shape(axis);
    codes.strides[axis] = stride;
    stride *= w.shape(axis);
  }
  w.codes(codes);
  w.scales(TensorView(parts.scales.data(), DType::f32, {n, p}));
  w.offsets(TensorView(parts.offsets.data(), DType::f32, {n, p}));
  return parts;
}

std::vector<float> dequantized(const QuantizedTensor& w) {
  std::vector<float> out(w.rows() * w.features());
  w.dequantize(TensorView(out.data(), DType::f32, {w.rows(), w.features()}));
  return out;
}

double squared_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  return sum;
}

class Forms : public ::testing::TestWithParam<std::tuple<int, std::int64_t, Scheme>> {
 protected:
  WeightCase form() const { return {std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam())}; }
};

INSTANTIATE_TEST_SUITE_P(Quantize, Forms,
                         ::testing::Combine(::testing::Values(4, 8), ::testing::Values(1, 3, 16, 48, 64, 1000),
                                            ::testing::Values(Scheme::symmetric, Scheme::asymmetric)));

TEST_P(Forms, ValuesAreWithinHalfAStep) {
  const std::int64_t n = 19, k = 101;
  const auto values = normal_values(n * k, 3);
  const auto w = random_weight(n, k, form(), 3);
  EXPECT_EQ(w.rank(), 2);
  EXPECT_EQ(w.shape(0), n);
  EXPECT_EQ(w.shape(1), k);
  EXPECT_EQ(w.bits(), form().bits);
  EXPECT_EQ(w.block_size(), form().block_size);
  EXPECT_EQ(w.blocks(), (k + form().block_size - 1) / form().block_size);
  EXPECT_EQ(w.scheme(), form().scheme);
  EXPECT_DOUBLE_EQ(w.bits_per_weight(), 8.0 * w.nbytes() / (n * k));

  const Parts parts = parts_of(w);
  const auto restored = dequantized(w);
  const int highest = (1 << (form().bits - 1)) - 1;
  const int lowest = form().scheme == Scheme::symmetric ? -highest : -highest - 1;
  for (std::int64_t i = 0; i < n * k; ++i) {
    const std::int64_t at = i / k * w.blocks() + i % k / form().block_size;
    const float scale = parts.scales[at], offset = parts.offsets[at];
    EXPECT_GE(parts.codes[i], lowest);
    EXPECT_LE(parts.codes[i], highest);
    EXPECT_EQ(restored[i], std::fma(scale, static_cast<float>(parts.codes[i]), offset));
    EXPECT_LE(std::abs(restored[i] - values[i]), 0.5f * scale * 1.0001f + 1e-6f) << "element " << i;
    EXPECT_TRUE(form().scheme == Scheme::asymmetric || offset == 0.0f);
  }
}

TEST_P(Forms, PartsGiveTheSameWeight) {
  const auto w = random_weight(21, 67, form());
  const Parts parts = parts_of(w);
  const TensorView scales(parts.scales.data(), DType::f32, {21, w.blocks()});
  const TensorView offsets(parts.offsets.data(), DType::f32, {21, w.blocks()});
  const auto again = QuantizedTensor::from_parts(TensorView(parts.codes.data(), DType::i8, {21, 67}), scales,
                                                 form().scheme == Scheme::symmetric ? nullptr : &offsets, form().bits,
                                                 form().block_size);
  EXPECT_TRUE(w.equal(again));
  EXPECT_FALSE(w.equal(random_weight(21, 67, form(), 99)));
}

TEST_P(Forms, MseIsNeverWorse) {
  const std::int64_t n = 7, k = 130;
  const auto values = normal_values(n * k, 5);
  const TensorView view(values.data(), DType::f32, {n, k});
  QuantizeOptions options{form().bits, form().block_size, form().scheme, Method::rtn};
  const double nearest = squared_error(values, dequantized(QuantizedTensor::quantize(view, options)));
  options.method = Method::mse;
  EXPECT_LE(squared_error(values, dequantized(QuantizedTensor::quantize(view, options))), nearest);
}

std::vector<std::string> available() {
  std::vector<std::string> names;
  for (const KernelInfo& row : kernels("quantize"))
    if (row.available) names.push_back(row.name);
  return names;
}

QuantizedTensor quantized_by(const std::string& kernel, const TensorView& weight, const QuantizeOptions& options) {
  const ForceKernel force("quantize", kernel);
  auto w = QuantizedTensor::quantize(weight, options);
  EXPECT_EQ(last_kernel("quantize"), kernel);
  return w;
}

// Blocks that are ordinary, constant, zero, subnormal, huge, one-sided, or around the smallest scale with an inverse.
std::vector<float> mixed_values(std::int64_t count) {
  auto values = normal_values(count, 21);
  for (std::int64_t i = 0; i < count; ++i) {
    switch (i / 70 % 7) {
      case 1:
        values[i] = -0.75f;
        break;
      case 2:
        values[i] = std::copysign(0.0f, values[i]);
        break;
      case 3:
        values[i] *= 1e-41f;
        break;
      case 4:
        values[i] = std::copysign(3.4e38f, values[i]);
        break;
      case 5:
        values[i] = std::abs(values[i]);
        break;
      case 6:
        values[i] *= 3e-38f;
        break;
      default:
        break;
    }
  }
  return values;
}

TEST(Quantize, EveryKernelGivesTheReferencesBits) {
  const std::int64_t n = 21, k = 331;
  const auto values = mixed_values(n * k);
  std::vector<std::uint16_t> half, bfloat;
  for (float value : values) {
    half.push_back(numerics::float_to_half(std::abs(value) < 6e4f ? value : 6e4f));
    bfloat.push_back(numerics::float_to_bfloat(std::abs(value) < 1e38f ? value : 1e38f));
  }
  const TensorView views[] = {TensorView(values.data(), DType::f32, {n, k}),
                              TensorView(half.data(), DType::f16, {n, k}),
                              TensorView(bfloat.data(), DType::bf16, {n, k})};
  for (const std::string& kernel : available())
    for (const TensorView& view : views)
      for (const int bits : {4, 8})
        for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
          for (const std::int64_t g : {1, 5, 8, 16, 31, 32, 33, 64, 70, 128, 331, 1000})
            for (const DType scale_dtype : {DType::f32, DType::f16}) {
              if (scale_dtype == DType::f16 && view.dtype != DType::f16) continue;
              const QuantizeOptions options{bits, g, scheme, Method::rtn, scale_dtype};
              const auto expected = quantized_by("reference", view, options);
              const auto w = quantized_by(kernel, view, options);
              if (kernel == "reference") {
                compare_with_unoptimized(parts_of(expected).codes);
                compare_with_unoptimized(parts_of(expected).scales);
              }
              EXPECT_TRUE(w.equal(expected)) << kernel << " " << bits << " bits, blocks of " << g;
              EXPECT_EQ(parts_of(w).codes, parts_of(expected).codes) << kernel;
            }
}

TEST(Quantize, EveryKernelRefusesWhatHalfScalesCannotHold) {
  std::vector<float> values(3 * 64, 1.0f);
  values[2 * 64 + 40] = 1e7f;
  QuantizeOptions options{4, 32, Scheme::symmetric, Method::rtn, DType::f16};
  const TensorView view(values.data(), DType::f32, {3, 64});
  for (const std::string& kernel : available())
    EXPECT_EQ(error_of<ValueError>([&] { quantized_by(kernel, view, options); }),
              "quantize: scale_dtype is float16, which cannot hold the scale or the offset of row 2, block 1 (largest "
              "65504), expected float32 for such a weight");
}

TEST(Quantize, EveryKernelSearchesLikeTheReference) {
  const auto values = normal_values(19 * 70, 1), importance = normal_values(70, 2);
  std::vector<float> weights(importance.size());
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = importance[i] * importance[i];
  const TensorView view(values.data(), DType::f32, {19, 70}), importance_view(weights.data(), DType::f32, {70});
  for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
    for (const Method method : {Method::mse, Method::awq})
      for (const DType scale_dtype : {DType::f32, DType::f16}) {
        QuantizeOptions options{4, 32, scheme, method, scale_dtype};
        if (method == Method::awq) options.importance = &importance_view;
        const auto expected = quantized_by("reference", view, options);
        for (const std::string& kernel : available())
          EXPECT_TRUE(quantized_by(kernel, view, options).equal(expected)) << kernel;
      }
}

TEST(Quantize, CodesAndNibblesFollowStrides) {
  const std::int64_t n = 18, k = 77, bytes = (k + 1) / 2;
  for (const std::int64_t g : {1, 7, 8, 20, 64}) {
    const auto w = random_weight(n, k, {4, g, Scheme::asymmetric});
    const Parts parts = parts_of(w);
    Guarded<std::int8_t> codes(2 * n * k);
    TensorView turned(codes.data(), DType::i8, {n, k});
    turned.strides[0] = 2;
    turned.strides[1] = 2 * n;
    w.codes(turned);
    Guarded<std::uint8_t> nibbles(2 * n * bytes), spread(2 * n * bytes);
    w.nibbles(TensorView(nibbles.data(), DType::u8, {n, bytes}));
    TensorView every_second(spread.data(), DType::u8, {n, bytes});
    every_second.strides[0] = 2 * bytes;
    every_second.strides[1] = 2;
    w.nibbles(every_second);
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < k; ++j) {
        const int code = parts.codes[i * k + j];
        EXPECT_EQ(codes[2 * (i + j * n)], code);
        EXPECT_TRUE(codes.poisoned(2 * (i + j * n) + 1));
        EXPECT_EQ((nibbles[i * bytes + j / 2] >> 4 * (j % 2) & 15) - 8, code);
        EXPECT_EQ(spread[2 * (i * bytes + j / 2)], nibbles[i * bytes + j / 2]);
        EXPECT_TRUE(spread.poisoned(2 * (i * bytes + j / 2) + 1));
      }
    for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(nibbles[i * bytes + bytes - 1] >> 4, 0);
    EXPECT_TRUE(codes.guards_intact() && nibbles.guards_intact() && spread.guards_intact());
  }
  std::uint8_t out[8] = {};
  EXPECT_EQ(error_of<ValueError>([&] { random_weight(2, 8, {8}).nibbles(TensorView(out, DType::u8, {2, 4})); }),
            "nibbles: the weight has 8 bits, expected 4");
  EXPECT_EQ(error_of<ValueError>([&] { random_weight(2, 8, {4}).nibbles(TensorView(out, DType::u8, {2, 3})); }),
            "nibbles: out has shape [2, 3], expected [2, 4]");
}

TEST(Quantize, ConstantAndZeroBlocksAreExact) {
  std::vector<float> values(2 * 32);
  for (int i = 0; i < 16; ++i)
    values[i] = 0.3f, values[16 + i] = -1e-30f, values[32 + i] = 0.0f, values[48 + i] = 1e30f;
  const auto w = QuantizedTensor::quantize(TensorView(values.data(), DType::f32, {2, 32}),
                                           {4, 16, Scheme::asymmetric, Method::rtn});
  EXPECT_EQ(dequantized(w), values);
}

TEST(Quantize, SmallBlocksDoNotCollapse) {
  std::vector<float> values(16);
  for (int i = 0; i < 16; ++i) values[i] = 1e-12f * static_cast<float>(i - 8);
  for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric}) {
    const auto w =
        QuantizedTensor::quantize(TensorView(values.data(), DType::f32, {1, 16}), {4, 16, scheme, Method::rtn});
    const auto restored = dequantized(w);
    for (int i = 0; i < 16; ++i) EXPECT_NEAR(restored[i], values[i], 1e-12f);
  }
}

TEST(Quantize, HalfInputsMeanTheirValues) {
  const std::int64_t n = 5, k = 40;
  const auto values = normal_values(n * k, 8);
  std::vector<std::uint16_t> half, bfloat;
  std::vector<float> of_half, of_bfloat;
  for (float value : values) {
    half.push_back(numerics::float_to_half(value));
    of_half.push_back(numerics::half_to_float(half.back()));
    bfloat.push_back(numerics::float_to_bfloat(value));
    of_bfloat.push_back(numerics::bfloat_to_float(bfloat.back()));
  }
  const QuantizeOptions options{8, 16, Scheme::asymmetric, Method::rtn};
  const auto quantized = [&](const void* data, DType dtype) {
    return QuantizedTensor::quantize(TensorView(data, dtype, {n, k}), options);
  };
  EXPECT_TRUE(quantized(half.data(), DType::f16).equal(quantized(of_half.data(), DType::f32)));
  EXPECT_TRUE(quantized(bfloat.data(), DType::bf16).equal(quantized(of_bfloat.data(), DType::f32)));

  const auto w = quantized(half.data(), DType::f16);
  const auto expected = dequantized(w);
  Guarded<std::uint16_t> out(n * k);
  w.dequantize(TensorView(out.data(), DType::bf16, {n, k}));
  for (std::int64_t i = 0; i < n * k; ++i) EXPECT_EQ(out[i], numerics::float_to_bfloat(expected[i]));
  EXPECT_TRUE(out.guards_intact());
}

TEST(Quantize, StridesAreFollowed) {
  const std::int64_t n = 6, k = 50;
  const auto values = normal_values(n * k, 9);
  std::vector<float> transposed(n * k), reversed(n * k);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      transposed[j * n + i] = values[i * k + j];
      reversed[i * k + k - 1 - j] = values[i * k + j];
    }
  const QuantizeOptions options{4, 16, Scheme::symmetric, Method::rtn};
  const auto expected = QuantizedTensor::quantize(TensorView(values.data(), DType::f32, {n, k}), options);
  TensorView view(transposed.data(), DType::f32, {n, k});
  view.strides[0] = 1;
  view.strides[1] = n;
  EXPECT_TRUE(QuantizedTensor::quantize(view, options).equal(expected));
  view = TensorView(reversed.data() + k - 1, DType::f32, {n, k});
  view.strides[1] = -1;
  EXPECT_TRUE(QuantizedTensor::quantize(view, options).equal(expected));
}

TEST(Quantize, ConvolutionTapsShareParameters) {
  const std::int64_t co = 5, ci = 10, kh = 3, kw = 2;
  const auto values = normal_values(co * ci * kh * kw, 4);
  const auto w = QuantizedTensor::quantize(TensorView(values.data(), DType::f32, {co, ci, kh, kw}),
                                           {8, 4, Scheme::symmetric, Method::rtn});
  EXPECT_EQ(w.rank(), 4);
  EXPECT_EQ(w.rows(), co);
  EXPECT_EQ(w.features(), ci);
  EXPECT_EQ(w.taps(), kh * kw);
  EXPECT_EQ(w.blocks(), 3);
  const Parts parts = parts_of(w);
  for (std::int64_t i = 0; i < co; ++i)
    for (std::int64_t j = 0; j < ci; ++j)
      for (std::int64_t tap = 0; tap < kh * kw; ++tap) {
        const std::int64_t at = (i * ci + j) * kh * kw + tap;
        const float scale = parts.scales[i * 3 + j / 4];
        EXPECT_NEAR(parts.codes[at] * scale, values[at], 0.5f * scale * 1.0001f);
      }
  const TensorView scales(parts.scales.data(), DType::f32, {co, 3});
  EXPECT_TRUE(w.equal(
      QuantizedTensor::from_parts(TensorView(parts.codes.data(), DType::i8, {co, ci, kh, kw}), scales, nullptr, 8, 4)));
}

TEST(Quantize, EmptyWeights) {
  float nothing = 0;
  for (const auto& shape : {std::pair<std::int64_t, std::int64_t>{0, 5}, {5, 0}}) {
    const auto w = QuantizedTensor::quantize(TensorView(&nothing, DType::f32, {shape.first, shape.second}), {});
    EXPECT_EQ(w.rows(), shape.first);
    EXPECT_EQ(w.features(), shape.second);
    EXPECT_EQ(w.bits_per_weight(), 0.0);
  }
}

TEST(Quantize, CopiesShareAndToTheCpuIsItself) {
  const auto w = random_weight(4, 64, {});
  const QuantizedTensor copy = w;
  EXPECT_EQ(&copy.packed(), &w.packed());
  EXPECT_EQ(&w.to(kCpu).packed(), &w.packed());
}

}  // namespace
}  // namespace qcore::test
