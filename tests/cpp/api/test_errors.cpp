#include <cmath>
#include <limits>

#include "support.h"

// The texts that users see: operator, argument, what was given, what was expected.
namespace qcore::test {
namespace {

class LinearErrors : public ::testing::Test {
 protected:
  QuantizedTensor w = random_weight(8, 64, {});
  std::vector<float> memory = std::vector<float>(4096);
  TensorView x = TensorView(memory.data(), DType::f32, {2, 64});
  TensorView bias = TensorView(memory.data() + 1024, DType::f32, {8});
  TensorView y = TensorView(memory.data() + 2048, DType::f32, {2, 8});
  LinearOptions options;

  void TearDown() override {
    for (float value : memory) ASSERT_EQ(value, 0.0f) << "a refused call wrote to its arrays";
  }
  template <class Thrown = ValueError>
  std::string text() {
    return error_of<Thrown>([&] { linear(x, w, &bias, y, options); });
  }
};

TEST_F(LinearErrors, InputDtype) {
  x.dtype = DType::i32;
  EXPECT_EQ(text<TypeError>(), "linear: x has dtype int32, expected float32, float16 or bfloat16");
}
TEST_F(LinearErrors, InputDepth) {
  x.shape[1] = 63;
  EXPECT_EQ(text(), "linear: x has shape [2, 63], expected its last dimension to be K = 64 of the weight [8, 64]");
}
TEST_F(LinearErrors, InputRank) {
  x = TensorView(memory.data(), DType::f32, {});
  EXPECT_EQ(text(), "linear: x has shape [], expected [..., K] with K = 64");
}
TEST_F(LinearErrors, InputDevice) {
  x.device = {DeviceType::cuda, 1};
  EXPECT_EQ(text(), "linear: x is on cuda:1 and the weight on cpu, expected the same device: weight.to(...) moves it");
}
TEST_F(LinearErrors, ConvolutionWeight) {
  const std::vector<float> values(8 * 64 * 9);
  w = QuantizedTensor::quantize(TensorView(values.data(), DType::f32, {8, 64, 3, 3}), {});
  EXPECT_EQ(text(), "linear: weight has 9 taps (a convolution's), expected [N, K], or [N, K, 1, 1]");
}
TEST_F(LinearErrors, OutputShape) {
  y.shape[1] = 9;
  EXPECT_EQ(text(), "linear: out has shape [2, 9], expected [2, 8]");
}
TEST_F(LinearErrors, OutputDtype) {
  y.dtype = DType::u8;
  EXPECT_EQ(text<TypeError>(), "linear: out has dtype uint8, expected float32, float16 or bfloat16");
}
TEST_F(LinearErrors, OutputDevice) {
  y.device = {DeviceType::cuda, 0};
  EXPECT_EQ(text(), "linear: out is on cuda:0, expected cpu like x");
}
TEST_F(LinearErrors, OutputReadOnly) {
  y.read_only = true;
  EXPECT_EQ(text(), "linear: out is read-only, expected a writable array");
}
TEST_F(LinearErrors, OutputSharesItsElements) {
  y.strides[0] = 0;
  EXPECT_EQ(text(),
            "linear: out with shape [2, 8] and strides [0, 1] has elements that share memory, expected each to have "
            "its own");
  y.strides[0] = 7;
  EXPECT_NE(text(), "no exception");
}
TEST_F(LinearErrors, OutputOverlapsInput) {
  y.data = memory.data() + 120;
  EXPECT_EQ(text(), "linear: out overlaps x in memory, expected separate arrays");
}
TEST_F(LinearErrors, OutputOverlapsBias) {
  y.data = memory.data() + 1031;
  EXPECT_EQ(text(), "linear: out overlaps bias in memory, expected separate arrays");
}
TEST_F(LinearErrors, BiasShapeAndDtype) {
  bias.shape[0] = 7;
  EXPECT_EQ(text(), "linear: bias has shape [7], expected [8]");
  bias.shape[0] = 8;
  bias.dtype = DType::i8;
  EXPECT_EQ(text<TypeError>(), "linear: bias has dtype int8, expected float32, float16 or bfloat16");
}
TEST_F(LinearErrors, ClampBounds) {
  options.activation = {ActivationKind::clamp, 1.0f, 0.0f};
  EXPECT_EQ(text(), "linear: activation clamps to (1, 0), expected lo <= hi");
  options.activation = {ActivationKind::clamp, std::nanf(""), 0.0f};
  EXPECT_NE(text(), "no exception");
}

TEST(QuantizeErrors, Options) {
  const std::vector<float> values(64);
  const TensorView view(values.data(), DType::f32, {1, 64});
  const auto text = [&](int bits, std::int64_t block) {
    return error_of<ValueError>(
        [&] { QuantizedTensor::quantize(view, {bits, block, Scheme::symmetric, Method::rtn}); });
  };
  for (const int bits : {-1, 0, 1, 7, 9})
    EXPECT_EQ(text(bits, 64), "quantize: bits is " + std::to_string(bits) + ", expected 2, 3, 4, 5, 6 or 8");
  EXPECT_EQ(text(4, 0), "quantize: block_size is 0, expected an integer from 1 to 2147483647");
  EXPECT_EQ(text(4, -64), "quantize: block_size is -64, expected an integer from 1 to 2147483647");
}

TEST(QuantizeErrors, Weights) {
  std::vector<float> values(24, 1.0f);
  const auto text = [&](const TensorView& view) {
    return error_of<Error>([&] { QuantizedTensor::quantize(view, {}); });
  };
  EXPECT_EQ(text(TensorView(values.data(), DType::f32, {2, 3, 4})),
            "quantize: weight has shape [2, 3, 4], expected [N, K] or [Co, Ci, Kh, Kw]");
  EXPECT_EQ(text(TensorView(values.data(), DType::i32, {6, 4})),
            "quantize: weight has dtype int32, expected float32, float16 or bfloat16");
  values[17] = std::numeric_limits<float>::quiet_NaN();
  values[22] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(text(TensorView(values.data(), DType::f32, {6, 4})),
            "quantize: weight holds a NaN or an infinity, the first at index [4, 1], expected finite values");
}

TEST(FromPartsErrors, EachPart) {
  std::vector<std::int8_t> codes(2 * 32);
  std::vector<float> parameters(4, 1.0f);
  const TensorView codes_view(codes.data(), DType::i8, {2, 32}), scales(parameters.data(), DType::f32, {2, 2});
  const auto text = [&](const TensorView& c, const TensorView& s, const TensorView* o, int bits) {
    return error_of<Error>([&] { QuantizedTensor::from_parts(c, s, o, bits, 16); });
  };
  EXPECT_EQ(text(codes_view, scales, nullptr, 4), "no exception");
  EXPECT_EQ(text(codes_view, scales, nullptr, 3), "from_parts: bits is 3, expected 4 or 8");
  const TensorView wrong(parameters.data(), DType::f32, {2, 1});
  EXPECT_EQ(text(codes_view, wrong, nullptr, 4), "from_parts: scales has shape [2, 1], expected [2, 2]");
  EXPECT_EQ(text(codes_view, scales, &wrong, 4), "from_parts: offsets has shape [2, 1], expected [2, 2]");
  EXPECT_EQ(text(scales, scales, nullptr, 4), "from_parts: codes has dtype float32, expected int8");
  codes[37] = 8;
  EXPECT_EQ(text(codes_view, scales, nullptr, 4),
            "from_parts: codes holds 8 at row 1, k 5, expected -8 to 7 for bits=4");
  EXPECT_EQ(text(codes_view, scales, nullptr, 8), "no exception");
  parameters[3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(text(codes_view, scales, nullptr, 8),
            "from_parts: scales holds a NaN or an infinity, the first at index [1, 1], expected finite values");
}

TEST(GetterErrors, ShapeAndDtype) {
  const auto w = random_weight(2, 32, {4, 16, Scheme::symmetric});
  float memory[64];
  EXPECT_EQ(error_of<TypeError>([&] { w.codes(TensorView(memory, DType::f32, {2, 32})); }),
            "codes: out has dtype float32, expected int8");
  EXPECT_EQ(error_of<ValueError>([&] { w.scales(TensorView(memory, DType::f32, {2, 3})); }),
            "scales: out has shape [2, 3], expected [2, 2]");
  const float constant[64] = {};
  EXPECT_EQ(error_of<ValueError>([&] { w.dequantize(TensorView(constant, DType::f32, {2, 32})); }),
            "dequantize: out is read-only, expected a writable array");
}

TEST(QuantizeActivationsErrors, Arguments) {
  float x[32] = {}, parameters[4];
  std::int8_t codes[32];
  QuantizedActivations y{TensorView(codes, DType::i8, {2, 16}), TensorView(parameters, DType::f32, {2, 2}), {}, 8};
  const auto text = [&](const TensorView& view, std::int64_t block, ComputeMode mode) {
    y.block_size = block;
    y.mode = mode;
    return error_of<Error>([&] { quantize_activations(view, y); });
  };
  const TensorView x_view(x, DType::f32, {2, 16});
  EXPECT_EQ(text(x_view, 8, ComputeMode::int8), "no exception");
  EXPECT_EQ(text(x_view, 8, ComputeMode::floating),
            "quantize_activations: y.mode is floating, expected int8, int8_asym or int16");
  EXPECT_EQ(text(TensorView(x, DType::f32, {32}), 8, ComputeMode::int8),
            "quantize_activations: y.codes has shape [2, 16], expected [32]");
  EXPECT_EQ(text(x_view, 0, ComputeMode::int8), "quantize_activations: y.block_size is 0, expected 1 or more");
  EXPECT_EQ(text(x_view, 8, ComputeMode::int16), "quantize_activations: y.codes has dtype int8, expected int16");
  EXPECT_EQ(text(x_view, 16, ComputeMode::int8), "quantize_activations: y.scales has shape [2, 2], expected [2, 1]");
  EXPECT_EQ(text(x_view, 8, ComputeMode::int8_asym),
            "quantize_activations: y.offsets are missing, expected them for int8_asym only");
  EXPECT_EQ(text(TensorView(codes, DType::f16, {2, 16}), 8, ComputeMode::int8),
            "quantize_activations: y.codes overlaps x in memory, expected separate arrays");
}

TEST(Errors, AreOneFamily) {
  EXPECT_THROW(throw ValueError("v"), Error);
  EXPECT_THROW(throw TypeError("t"), Error);
  EXPECT_THROW(throw CudaError("c"), Error);
  EXPECT_THROW(set_num_threads(0), std::runtime_error);
  EXPECT_THROW(set_num_threads(0), ValueError);
}

}  // namespace
}  // namespace qcore::test
