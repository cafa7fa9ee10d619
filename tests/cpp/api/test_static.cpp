#include <algorithm>
#include <cmath>
#include <thread>

#include "support.h"

namespace qcore::test {
namespace {

std::vector<std::uint8_t> random_codes(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<std::uint8_t> codes(count);
  for (auto& value : codes) value = static_cast<std::uint8_t>(engine() >> 24);
  return codes;
}

int code_of(const std::uint8_t* codes, DType dtype, std::int64_t at) {
  return dtype == DType::u8 ? codes[at] : reinterpret_cast<const std::int8_t*>(codes)[at];
}

struct Case {
  std::int64_t batch, channels, height, width, outputs, kernel[2];
  ConvParams window;

  std::int64_t depth() const { return channels / window.groups; }
  std::int64_t out(int axis) const {
    const std::int64_t input = axis ? width : height;
    const std::int64_t span = window.dilation[axis] * (kernel[axis] - 1) + 1;
    return (input + window.padding[axis] + window.padding[axis + 2] - span) / window.stride[axis] + 1;
  }
};

const Case kCases[] = {
    {2, 19, 6, 7, 33, {3, 3}, {{1, 1}, {1, 1, 1, 1}, {1, 1}, 1}},
    {1, 24, 7, 9, 36, {3, 2}, {{2, 1}, {2, 0, 1, 1}, {1, 2}, 3}},
    {2, 70, 9, 8, 70, {3, 3}, {{1, 1}, {1, 1, 1, 1}, {1, 1}, 70}},
    {1, 40, 4, 5, 17, {1, 1}, {}},
};

struct Layer {
  std::vector<std::uint8_t> weight;
  std::vector<float> scales;
  std::vector<std::int32_t> bias;
  StaticOptions options;
  DType weight_dtype;

  Layer(std::int64_t outputs, std::int64_t depth, DType x, DType y, DType w) : weight_dtype(w) {
    weight = random_codes(outputs * depth, 1);
    for (std::int64_t n = 0; n < outputs; ++n) {
      scales.push_back(0.001f * static_cast<float>(1 + n % 7));
      bias.push_back(static_cast<std::int32_t>(n * 37 - 500));
    }
    options.x = {x, 0.02f, 3};
    options.y = {y, 0.05f * std::sqrt(static_cast<float>(depth)), 5};
    options.w_zero_point = w == DType::u8 ? 128 : 0;
    options.hi = 120;
  }
  TensorView scale_view() const { return {scales.data(), DType::f32, {static_cast<std::int64_t>(scales.size())}}; }
  TensorView bias_view() const { return {bias.data(), DType::i32, {static_cast<std::int64_t>(bias.size())}}; }

  // The definition in the header.
  int requantized(std::int64_t sum, std::int64_t n) const {
    const float multiplier = options.x.scale * scales[n] / options.y.scale;
    const float rounded = std::nearbyint(multiplier * static_cast<float>(sum + bias[n]));
    const int lowest = options.y.dtype == DType::u8 ? 0 : -128;
    return static_cast<int>(std::clamp(rounded + static_cast<float>(options.y.zero_point),
                                       static_cast<float>(std::max(lowest, options.lo)),
                                       static_cast<float>(options.hi)));
  }
};

// Strides of [N, C, H, W]; room beside each pixel's channels for `room` more.
TensorView image(void* data, DType dtype, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w,
                 bool channels_last, std::int64_t room) {
  TensorView view(data, dtype, {n, c, h, w});
  const std::int64_t column = channels_last ? c + room : 1, row = w * column + (channels_last ? 0 : room);
  const std::int64_t strides[] = {channels_last ? h * row : c * h * row, channels_last ? 1 : h * row, row, column};
  std::copy(strides, strides + 4, view.strides);
  return view;
}

std::int64_t place(const TensorView& view, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return n * view.strides[0] + c * view.strides[1] + h * view.strides[2] + w * view.strides[3];
}

int plain_result(const Case& c, const Layer& layer, const std::vector<std::uint8_t>& x, std::int64_t n, std::int64_t o,
                 std::int64_t i, std::int64_t j) {
  std::int64_t sum = 0;
  const std::int64_t first = o / (c.outputs / c.window.groups) * c.depth();
  for (std::int64_t k = 0; k < c.depth(); ++k)
    for (std::int64_t a = 0; a < c.kernel[0]; ++a)
      for (std::int64_t b = 0; b < c.kernel[1]; ++b) {
        const std::int64_t h = i * c.window.stride[0] + a * c.window.dilation[0] - c.window.padding[0];
        const std::int64_t w = j * c.window.stride[1] + b * c.window.dilation[1] - c.window.padding[1];
        if (h < 0 || h >= c.height || w < 0 || w >= c.width) continue;
        const int xq =
            code_of(x.data(), layer.options.x.dtype, ((n * c.channels + first + k) * c.height + h) * c.width + w);
        const int wq =
            code_of(layer.weight.data(), layer.weight_dtype, ((o * c.depth() + k) * c.kernel[0] + a) * c.kernel[1] + b);
        sum += static_cast<std::int64_t>(xq - layer.options.x.zero_point) * (wq - layer.options.w_zero_point);
      }
  return layer.requantized(sum, o);
}

StaticConv2d conv_of(const Case& c, const Layer& layer) {
  const TensorView bias = layer.bias_view();
  return StaticConv2d::create(
      TensorView(layer.weight.data(), layer.weight_dtype, {c.outputs, c.depth(), c.kernel[0], c.kernel[1]}),
      layer.scale_view(), &bias, c.window, layer.options);
}

// Named for the filter of the tests by instruction set; the plain loop is what `reference` must give, too.
TEST(Static, EveryKernelGivesTheReferencesBits) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::u8, DType::i8}) {
      const Layer layer(c.outputs, c.depth() * c.kernel[0] * c.kernel[1], dtype, dtype, dtype);
      const StaticConv2d conv = conv_of(c, layer);
      const auto codes = random_codes(c.batch * c.channels * c.height * c.width, 2);
      for (const bool channels_last : {false, true})
        for (const std::int64_t room : {0, 5}) {
          TensorView x = image(nullptr, dtype, c.batch, c.channels, c.height, c.width, channels_last, room);
          std::vector<std::uint8_t> memory(place(x, c.batch, 0, 0, 0) + 64);
          std::int64_t from = 0;
          for (std::int64_t n = 0; n < c.batch; ++n)
            for (std::int64_t ch = 0; ch < c.channels; ++ch)
              for (std::int64_t h = 0; h < c.height; ++h)
                for (std::int64_t w = 0; w < c.width; ++w) memory[place(x, n, ch, h, w)] = codes[from++];
          x.data = memory.data();
          for (const KernelInfo& row : kernels("static")) {
            if (!row.available || row.device != "cpu") continue;
            TensorView y = image(nullptr, dtype, c.batch, c.outputs, c.out(0), c.out(1), channels_last, room);
            Guarded<std::uint8_t> out(place(y, c.batch, 0, 0, 0));
            y.data = out.data();
            const ForceKernel force("static", row.name);
            conv.run(x, y);
            EXPECT_EQ(last_kernel("static"), row.name);
            EXPECT_TRUE(out.guards_intact()) << row.name;
            std::vector<bool> written(out.size());
            for (std::int64_t n = 0; n < c.batch; ++n)
              for (std::int64_t o = 0; o < c.outputs; ++o)
                for (std::int64_t i = 0; i < c.out(0); ++i)
                  for (std::int64_t j = 0; j < c.out(1); ++j) {
                    const std::int64_t at = place(y, n, o, i, j);
                    written[at] = true;
                    ASSERT_EQ(code_of(out.data(), dtype, at), plain_result(c, layer, codes, n, o, i, j))
                        << row.name << " channels " << c.channels;
                  }
            for (std::int64_t i = 0; i < out.size(); ++i)
              ASSERT_TRUE(written[i] || out.poisoned(i)) << row.name << " wrote beside y";
          }
        }
    }
}

TEST(StaticLinear, EveryKernelGivesTheReferencesBits) {
  const std::int64_t m = 7, k = 75, n = 35;
  const Layer layer(n, k, DType::u8, DType::i8, DType::i8);
  const TensorView bias = layer.bias_view();
  const auto linear = StaticLinear::create(TensorView(layer.weight.data(), DType::i8, {n, k}), layer.scale_view(),
                                           &bias, layer.options);
  EXPECT_EQ(linear.rows(), n);
  EXPECT_EQ(linear.features(), k);
  const auto x = random_codes(m * 2 * k, 3);
  TensorView spread(x.data(), DType::u8, {m, k});
  spread.strides[0] = 2 * k;
  for (const KernelInfo& row : kernels("static")) {
    if (!row.available || row.device != "cpu") continue;
    Guarded<std::uint8_t> out(m * n);
    const ForceKernel force("static", row.name);
    linear.run(spread, TensorView(static_cast<void*>(out.data()), DType::i8, {m, n}));
    EXPECT_TRUE(out.guards_intact());
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        std::int64_t sum = 0;
        for (std::int64_t at = 0; at < k; ++at)
          sum += (x[i * 2 * k + at] - 3) * code_of(layer.weight.data(), DType::i8, j * k + at);
        ASSERT_EQ(code_of(out.data(), DType::i8, i * n + j), layer.requantized(sum, j)) << row.name;
      }
  }
}

TEST(Static, OneLayerRunsFromSeveralThreadsAtOnce) {
  if (!has_threads()) GTEST_SKIP() << "no threads";
  const Case& c = kCases[0];
  const Layer layer(c.outputs, c.depth() * 9, DType::u8, DType::u8, DType::i8);
  const StaticConv2d conv = conv_of(c, layer);
  const auto codes = random_codes(c.batch * c.channels * c.height * c.width, 2);
  const TensorView x(codes.data(), DType::u8, {c.batch, c.channels, c.height, c.width});
  std::int64_t shape[4];
  conv.shape(x, shape);
  std::vector<std::vector<std::uint8_t>> results(4,
                                                 std::vector<std::uint8_t>(shape[0] * shape[1] * shape[2] * shape[3]));
  std::vector<std::thread> threads;
  for (auto& result : results)
    threads.emplace_back([&, copy = conv] {
      copy.run(x, TensorView(static_cast<void*>(result.data()), DType::u8, {shape[0], shape[1], shape[2], shape[3]}));
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results)
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(result.size()); ++i)
      ASSERT_EQ(result[i], plain_result(c, layer, codes, i / (shape[1] * shape[2] * shape[3]),
                                        i / (shape[2] * shape[3]) % shape[1], i / shape[3] % shape[2], i % shape[3]));
}

class StaticErrors : public ::testing::Test {
 protected:
  std::vector<std::uint8_t> weight = std::vector<std::uint8_t>(4 * 3 * 9, 1), memory = std::vector<std::uint8_t>(400);
  std::vector<float> scales = std::vector<float>(4, 0.5f);
  std::vector<std::int32_t> bias = std::vector<std::int32_t>(4);
  TensorView w = TensorView(weight.data(), DType::i8, {4, 3, 3, 3});
  TensorView w_scale = TensorView(scales.data(), DType::f32, {4});
  TensorView b = TensorView(bias.data(), DType::i32, {4});
  TensorView x = TensorView(memory.data(), DType::u8, {1, 3, 5, 5});
  TensorView y = TensorView(memory.data() + 100, DType::u8, {1, 4, 3, 3});
  ConvParams window;
  StaticOptions options;

  template <class Thrown = ValueError>
  std::string creating() {
    return error_of<Thrown>([&] { StaticConv2d::create(w, w_scale, &b, window, options); });
  }
  template <class Thrown = ValueError>
  std::string running() {
    const auto layer = StaticConv2d::create(w, w_scale, &b, window, options);
    const std::string text = error_of<Thrown>([&] { layer.run(x, y); });
    EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [](int value) { return value == 0; }));
    return text;
  }
};

TEST_F(StaticErrors, Weights) {
  w.dtype = DType::f32;
  EXPECT_EQ(creating<TypeError>(), "static.qconv2d: weight has dtype float32, expected int8 or uint8");
  w = TensorView(weight.data(), DType::i8, {4, 27});
  EXPECT_EQ(creating(), "static.qconv2d: weight has shape [4, 27], expected [Co, Ci / groups, Kh, Kw]");
  EXPECT_EQ(error_of<ValueError>(
                [&] { StaticLinear::create(TensorView(weight.data(), DType::i8, {108}), w_scale, nullptr, options); }),
            "static.qlinear: weight has shape [108], expected [N, K]");
}
TEST_F(StaticErrors, Window) {
  window.groups = 3;
  EXPECT_EQ(creating(), "static.qconv2d: weight has Co = 4 output channels, expected a multiple of groups = 3");
  window.groups = 1, window.stride[0] = 0;
  EXPECT_EQ(creating(), "static.qconv2d: stride along H is 0, expected 1 to 2147483648");
}
TEST_F(StaticErrors, Parameters) {
  w_scale.shape[0] = 3;
  EXPECT_EQ(creating(), "static.qconv2d: w_scale has shape [3], expected [4] or [1]");
  w_scale.shape[0] = 4, scales[2] = -1;
  EXPECT_EQ(creating(), "static.qconv2d: w_scale[2] is -1, expected a positive finite number");
  scales[2] = 1e30f, options.x.scale = 1e30f;
  EXPECT_EQ(creating(), "static.qconv2d: x_scale * w_scale[2] / y_scale is inf, expected a finite number");
  scales[2] = 0.5f, options.x.scale = 0;
  EXPECT_EQ(creating(), "static.qconv2d: x_scale is 0, expected a positive finite number");
  options.x.scale = 1, options.y.zero_point = 256;
  EXPECT_EQ(creating(), "static.qconv2d: y_zero_point is 256, expected 0 to 255 for uint8");
  options.y.zero_point = 0, options.w_zero_point = 128;
  EXPECT_EQ(creating(), "static.qconv2d: w_zero_point is 128, expected -128 to 127 for int8");
  options.w_zero_point = 0, options.x.dtype = DType::f32;
  EXPECT_EQ(creating<TypeError>(), "static.qconv2d: the codes of x are of dtype float32, expected int8 or uint8");
  options.x.dtype = DType::u8, options.lo = 10, options.hi = 9;
  EXPECT_EQ(creating(), "static.qconv2d: clamp is (10, 9), expected codes of y within 0 to 255, lo <= hi");
}
TEST_F(StaticErrors, Bias) {
  b.dtype = DType::f32;
  EXPECT_EQ(creating<TypeError>(), "static.qconv2d: bias has dtype float32, expected int32");
  b.dtype = DType::i32, b.shape[0] = 5;
  EXPECT_EQ(creating(), "static.qconv2d: bias has shape [5], expected [4]");
  b.shape[0] = 4, bias[1] = 2147483647;
  EXPECT_EQ(creating(),
            "static.qconv2d: output channel 1 can reach sums of 2147490532 with its weights and bias, expected at most "
            "2147483647: they are int32");
}
TEST_F(StaticErrors, Arrays) {
  x.dtype = DType::i8;
  EXPECT_EQ(running<TypeError>(), "static.qconv2d: x has dtype int8, expected uint8");
  x.dtype = DType::u8, y.dtype = DType::i8;
  EXPECT_EQ(running<TypeError>(), "static.qconv2d: out has dtype int8, expected uint8");
  y.dtype = DType::u8, y.shape[1] = 3;
  EXPECT_EQ(running(), "static.qconv2d: out has shape [1, 3, 3, 3], expected [1, 4, 3, 3]");
  y.shape[1] = 4, y.data = memory.data() + 70;
  EXPECT_EQ(running(), "static.qconv2d: out overlaps x in memory, expected separate arrays");
  y.data = memory.data() + 100, y.read_only = true;
  EXPECT_EQ(running(), "static.qconv2d: out is read-only, expected a writable array");
  y.read_only = false, x.device = {DeviceType::cuda, 0};
  EXPECT_EQ(running(),
            "static.qconv2d: x is on cuda:0 and the layer on cpu, expected the same device: layer.to(...) moves it");
  x.device = {}, x.shape[1] = 4;
  EXPECT_EQ(
      running(),
      "static.qconv2d: x has shape [1, 4, 5, 5], expected Ci = 3 * 1 channels: those of the weight, times groups");
}

}  // namespace
}  // namespace qcore::test
