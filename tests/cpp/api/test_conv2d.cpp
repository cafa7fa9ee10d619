#include <algorithm>
#include <thread>

#include "reference_results.h"
#include "support.h"

namespace qcore::test {
namespace {

struct Case {
  std::int64_t batch, channels, height, width;  // of x
  std::int64_t outputs, kernel[2];
  std::int64_t block;
  ConvParams window;

  std::int64_t channels_per_group() const { return channels / window.groups; }
  std::int64_t out(int axis) const {
    const std::int64_t input = axis ? width : height;
    const std::int64_t span = window.dilation[axis] * (kernel[axis] - 1) + 1;
    return (input + window.padding[axis] + window.padding[axis + 2] - span) / window.stride[axis] + 1;
  }
};

const Case kCases[] = {
    {2, 32, 6, 5, 33, {3, 3}, 16, {{1, 1}, {1, 1, 1, 1}, {1, 1}, 1}},
    {1, 45, 7, 9, 32, {3, 2}, 32, {{2, 1}, {2, 0, 1, 1}, {1, 2}, 1}},
    {1, 24, 5, 6, 36, {3, 3}, 8, {{1, 1}, {1, 1, 1, 1}, {1, 1}, 3}},
    {2, 37, 9, 8, 37, {3, 3}, 1, {{1, 1}, {1, 1, 1, 1}, {1, 1}, 37}},
    {1, 64, 11, 10, 64, {5, 3}, 64, {{2, 2}, {2, 1, 2, 1}, {1, 1}, 64}},
    {1, 32, 14, 15, 32, {3, 3}, 1, {{1, 1}, {1, 1, 1, 1}, {1, 1}, 32}},
    {1, 20, 4, 5, 17, {1, 1}, 16, {}},
};

enum class Order { nchw, channels_last, apart };  // the last one: neither pixels nor channels are neighbors

// Strides of [N, C, H, W], spread so that channels and rows have room between them.
TensorView image(void* data, DType dtype, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w, Order order,
                 std::int64_t room = 0) {
  TensorView view(data, dtype, {n, c, h, w});
  const std::int64_t column = order == Order::nchw ? 1 : order == Order::apart ? 2 : c + room;
  const std::int64_t row = w * column + (order == Order::channels_last ? 0 : room);
  view.strides[3] = column;
  view.strides[2] = row;
  view.strides[1] = order == Order::channels_last ? 1 : h * row;
  view.strides[0] = order == Order::channels_last ? h * row : c * h * row;
  return view;
}

std::int64_t extent_of(const TensorView& view) {
  std::int64_t last = 0;
  for (int axis = 0; axis < view.rank; ++axis) last += (view.shape[axis] - 1) * view.strides[axis];
  return last + 1;
}

std::int64_t place(const TensorView& view, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return n * view.strides[0] + c * view.strides[1] + h * view.strides[2] + w * view.strides[3];
}

template <class Visit>
void for_each_element(const TensorView& view, const Visit& visit) {
  for (std::int64_t n = 0; n < view.shape[0]; ++n)
    for (std::int64_t c = 0; c < view.shape[1]; ++c)
      for (std::int64_t h = 0; h < view.shape[2]; ++h)
        for (std::int64_t w = 0; w < view.shape[3]; ++w) visit(n, c, h, w);
}

QuantizedTensor weight_of(const Case& c, int bits, Scheme scheme) {
  const auto values = normal_values(c.outputs * c.channels_per_group() * c.kernel[0] * c.kernel[1], 3);
  return QuantizedTensor::quantize(
      TensorView(values.data(), DType::f32, {c.outputs, c.channels_per_group(), c.kernel[0], c.kernel[1]}),
      {bits, c.block, scheme, Method::rtn});
}

// With zeros, a tiny value, one whose scale is subnormal, and a pixel of zeros.
std::vector<float> input_of(const Case& c) {
  auto values = normal_values(c.batch * c.channels * c.height * c.width, 4);
  values[0] = 0.0f, values[1] = 1e-30f, values[2] = 1e-37f, values[3] = -1e-42f, values[5] = -0.0f;
  for (std::int64_t channel = 0; channel < c.channels; ++channel) values[(channel * c.height + 1) * c.width + 1] = 0.0f;
  return values;
}

// The result as [N, C, H, W], whatever the memory that it was computed in.
std::vector<float> conv_on(const std::string& kernel, const Case& c, const std::vector<float>& values,
                           const QuantizedTensor& w, const Conv2dOptions& options, const TensorView* bias,
                           Order x_order, Order y_order, std::int64_t room) {
  TensorView x = image(nullptr, DType::f32, c.batch, c.channels, c.height, c.width, x_order, room);
  std::vector<float> memory(extent_of(x));
  x.data = memory.data();
  std::int64_t at = 0;
  for_each_element(x, [&](auto n, auto ch, auto h, auto wd) { memory[place(x, n, ch, h, wd)] = values[at++]; });
  TensorView y = image(nullptr, DType::f32, c.batch, c.outputs, c.out(0), c.out(1), y_order, room);
  Guarded<float> out(extent_of(y));
  y.data = out.data();
  {
    ForceKernel force("conv2d", kernel);
    conv2d(x, w, bias, y, options);
  }
  EXPECT_EQ(last_kernel("conv2d"), kernel);
  EXPECT_TRUE(out.guards_intact()) << kernel;
  std::vector<float> result;
  std::vector<bool> written(out.size());
  for_each_element(y, [&](auto n, auto ch, auto h, auto wd) {
    result.push_back(out[place(y, n, ch, h, wd)]);
    written[place(y, n, ch, h, wd)] = true;
  });
  for (std::int64_t i = 0; i < out.size(); ++i) EXPECT_TRUE(written[i] || out.poisoned(i)) << kernel << " wrote beside";
  return result;
}

TEST(Conv2d, EveryKernelGivesTheReferencesBits) {
  const auto rows = kernels("conv2d");
  const bool has_vectors = std::any_of(rows.begin(), rows.end(),
                                       [](const KernelInfo& row) { return row.available && row.name == "int8_avx2"; });
  for (const Case& c : kCases) {
    const auto x = input_of(c);
    const auto bias = normal_values(c.outputs, 5);
    const TensorView bias_view(bias.data(), DType::f32, {c.outputs});
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric}) {
        const auto w = weight_of(c, bits, scheme);
        for (const ComputeMode compute : kComputes) {
          Conv2dOptions options;
          options.window = c.window;
          options.compute = compute;
          options.activation = {ActivationKind::clamp, -0.5f, 2.0f};
          const auto expected = conv_on("reference", c, x, w, options, &bias_view, Order::nchw, Order::nchw, 0);
          compare_with_unoptimized(expected);
          int others = 0;
          for (const KernelInfo& row : rows) {
            if (!row.available || row.device != "cpu" || row.name == "reference") continue;
            for (const Order order : {Order::nchw, Order::channels_last, Order::apart})
              for (const std::int64_t room : {0, 3}) {
                std::vector<float> y;
                try {
                  y = conv_on(row.name, c, x, w, options, &bias_view, order, order, room);
                } catch (const ValueError& error) {
                  ASSERT_NE(std::string(error.what()).find("does not take this call"), std::string::npos);
                  continue;
                }
                ++others;
                ASSERT_TRUE(same_bits(y, expected)) << row.name << " bits " << bits << " compute "
                                                    << static_cast<int>(compute) << " channels " << c.channels;
              }
          }
          EXPECT_TRUE(others > 0 || !has_vectors) << "only the reference took channels " << c.channels;
        }
      }
  }
}

TEST(Conv2d, FloatComputeIsCloseToAPlainLoop) {
  for (const Case& c : kCases) {
    const auto w = weight_of(c, 8, Scheme::asymmetric);
    const std::int64_t depth = c.channels_per_group(), taps = c.kernel[0] * c.kernel[1];
    std::vector<float> weights(c.outputs * depth * taps);
    w.dequantize(TensorView(weights.data(), DType::f32, {c.outputs, depth, c.kernel[0], c.kernel[1]}));
    const auto x = input_of(c);
    std::vector<float> y(c.batch * c.outputs * c.out(0) * c.out(1));
    Conv2dOptions options;
    options.window = c.window;
    options.compute = ComputeMode::floating;
    const TensorView view(y.data(), DType::f32, {c.batch, c.outputs, c.out(0), c.out(1)});
    conv2d(TensorView(x.data(), DType::f32, {c.batch, c.channels, c.height, c.width}), w, nullptr, view, options);
    for_each_element(view, [&](std::int64_t n, std::int64_t o, std::int64_t i, std::int64_t j) {
      double sum = 0;
      const std::int64_t first = o / (c.outputs / c.window.groups) * depth;
      for (std::int64_t k = 0; k < depth; ++k)
        for (std::int64_t tap = 0; tap < taps; ++tap) {
          const std::int64_t h =
              i * c.window.stride[0] + tap / c.kernel[1] * c.window.dilation[0] - c.window.padding[0];
          const std::int64_t v =
              j * c.window.stride[1] + tap % c.kernel[1] * c.window.dilation[1] - c.window.padding[1];
          if (h < 0 || h >= c.height || v < 0 || v >= c.width) continue;
          sum += static_cast<double>(x[((n * c.channels + first + k) * c.height + h) * c.width + v]) *
                 weights[(o * depth + k) * taps + tap];
        }
      EXPECT_NEAR(y[place(view, n, o, i, j)], sum, 1e-3);
    });
  }
}

TEST(Conv2d, RunsFromSeveralThreadsAtOnce) {
  if (!has_threads()) GTEST_SKIP() << "no threads";
  for (const Case& c : {kCases[0], kCases[3]}) {
    const auto w = weight_of(c, 8, Scheme::asymmetric);
    const auto x = input_of(c);
    const TensorView view(x.data(), DType::f32, {c.batch, c.channels, c.height, c.width});
    Conv2dOptions options;
    options.window = c.window;
    options.compute = ComputeMode::int8_asym;  // whose first call computes sums of the weights
    const std::int64_t size = c.batch * c.outputs * c.out(0) * c.out(1);
    std::vector<std::vector<float>> results(4, std::vector<float>(size));
    std::vector<std::thread> threads;
    for (auto& result : results)
      threads.emplace_back([&] {
        conv2d(view, w, nullptr, TensorView(result.data(), DType::f32, {c.batch, c.outputs, c.out(0), c.out(1)}),
               options);
      });
    for (std::thread& thread : threads) thread.join();
    for (const auto& result : results) EXPECT_TRUE(same_bits(result, results[0]));
    EXPECT_GT(*std::max_element(results[0].begin(), results[0].end()), 0.0f);
  }
}

class Conv2dErrors : public ::testing::Test {
 protected:
  std::vector<float> memory = std::vector<float>(8192);
  QuantizedTensor w = QuantizedTensor::quantize(TensorView(memory.data(), DType::f32, {8, 16, 3, 3}), {});
  TensorView x = TensorView(memory.data(), DType::f32, {1, 16, 6, 5});
  TensorView bias = TensorView(memory.data() + 4000, DType::f32, {8});
  TensorView y = TensorView(memory.data() + 5000, DType::f32, {1, 8, 4, 3});
  Conv2dOptions options;

  void TearDown() override {
    for (float value : memory) ASSERT_EQ(value, 0.0f) << "a refused call wrote to its arrays";
  }
  template <class Thrown = ValueError>
  std::string text() {
    return error_of<Thrown>([&] { conv2d(x, w, &bias, y, options); });
  }
};

TEST_F(Conv2dErrors, Dtypes) {
  x.dtype = DType::i32;
  EXPECT_EQ(text<TypeError>(), "conv2d: x has dtype int32, expected float32, float16 or bfloat16");
  x.dtype = DType::f32, y.dtype = DType::u8;
  EXPECT_EQ(text<TypeError>(), "conv2d: out has dtype uint8, expected float32, float16 or bfloat16");
  y.dtype = DType::f32, bias.dtype = DType::i32;
  EXPECT_EQ(text<TypeError>(), "conv2d: bias has dtype int32, expected float32, float16 or bfloat16");
}
TEST_F(Conv2dErrors, Window) {
  options.window.stride[1] = 0;
  EXPECT_EQ(text(), "conv2d: stride along W is 0, expected 1 to 2147483648");
  options.window.stride[1] = 1, options.window.dilation[0] = -1;
  EXPECT_EQ(text(), "conv2d: dilation along H is -1, expected 1 to 2147483648");
  options.window.dilation[0] = 1, options.window.padding[2] = -1;
  EXPECT_EQ(text(), "conv2d: padding at the bottom is -1, expected 0 to 2147483648");
  options.window.padding[2] = 0, options.window.groups = 0;
  EXPECT_EQ(text(), "conv2d: groups is 0, expected at least 1");
  options.window.groups = 3;
  EXPECT_EQ(text(), "conv2d: the weight has Co = 8 output channels, expected a multiple of groups = 3");
  options.window.groups = 2;
  EXPECT_EQ(text(),
            "conv2d: x has shape [1, 16, 6, 5], expected Ci = 16 * 2 channels: those of the weight, times groups");
  options.window.groups = 1, options.window.dilation[0] = 3;
  EXPECT_EQ(text(),
            "conv2d: along H the kernel spans 7 elements and x with its padding has 6, expected at least as many");
}
TEST_F(Conv2dErrors, Shapes) {
  y.shape[3] = 5;
  EXPECT_EQ(text(), "conv2d: out has shape [1, 8, 4, 5], expected [1, 8, 4, 3]");
  bias.shape[0] = 7, y.shape[3] = 3;
  EXPECT_EQ(text(), "conv2d: bias has shape [7], expected [8]");
  x = TensorView(memory.data(), DType::f32, {16, 6, 5});
  EXPECT_EQ(text(), "conv2d: x has shape [16, 6, 5], expected [N, Ci, H, W]");
}
TEST_F(Conv2dErrors, LinearWeight) {
  w = random_weight(8, 64, {});
  EXPECT_EQ(text(), "conv2d: weight has shape [8, 64] (a linear layer's), expected [Co, Ci / groups, Kh, Kw]");
}
TEST_F(Conv2dErrors, Devices) {
  x.device = {DeviceType::cuda, 1};
  EXPECT_EQ(text(), "conv2d: x is on cuda:1 and the weight on cpu, expected the same device: weight.to(...) moves it");
  x.device = {}, y.device = {DeviceType::cuda, 0};
  EXPECT_EQ(text(), "conv2d: out is on cuda:0, expected cpu like x");
  y.device = {}, bias.device = {DeviceType::cuda, 0};
  EXPECT_EQ(text(), "conv2d: bias is on cuda:0, expected cpu like x");
}
TEST_F(Conv2dErrors, Output) {
  y.read_only = true;
  EXPECT_EQ(text(), "conv2d: out is read-only, expected a writable array");
  y.read_only = false, y.strides[2] = 0;
  EXPECT_NE(text().find("has elements that share memory, expected each to have its own"), std::string::npos);
  y.strides[2] = 3, y.data = memory.data() + 470;
  EXPECT_EQ(text(), "conv2d: out overlaps x in memory, expected separate arrays");
  y.data = memory.data() + 3999;
  EXPECT_EQ(text(), "conv2d: out overlaps bias in memory, expected separate arrays");
}
TEST_F(Conv2dErrors, FusedActivation) {
  options.activation = {ActivationKind::clamp, 1.0f, -1.0f};
  EXPECT_EQ(text(), "conv2d: activation clamps to (1, -1), expected lo <= hi");
}

}  // namespace
}  // namespace qcore::test
