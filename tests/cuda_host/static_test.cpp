// The CUDA rows of static's table on the machine against the reference kernel of libqcore: the same codes, and not a
// byte changed around them; layers are moved by move_static_layer().

#include <gtest/gtest.h>

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "device_arrays.h"
#include "image_arrays.h"
#include "runtime/cuda/cuda_check.h"
#include "static/cuda/kernels.h"

namespace qcore {
namespace {

struct Case {
  std::int64_t batch, channels, height, width;  // of x
  std::int64_t outputs, kernel[2];
  ConvParams window{};
  DType x_dtype = DType::u8, w_dtype = DType::i8, y_dtype = DType::u8;
  int x_zero = 3, w_zero = 0, y_zero = 100;
  int lo = -128, hi = 255;
  bool bias = true;
  ImageOrder x_order = ImageOrder::channels_last, y_order = ImageOrder::channels_last;
  bool implicit_gemm = true;
  bool large_tiles = false;  // too
  StaticBounds bounds{};
  unsigned seed = 0;
};

std::string describe(const Case& c) {
  std::ostringstream text;
  text << "x " << c.batch << "x" << c.channels << "x" << c.height << "x" << c.width << " " << name(c.x_dtype) << " w "
       << c.outputs << "x" << c.kernel[0] << "x" << c.kernel[1] << " " << name(c.w_dtype) << " groups "
       << c.window.groups << " y " << name(c.y_dtype) << " zeros " << c.x_zero << " " << c.w_zero << " " << c.y_zero
       << " orders " << static_cast<int>(c.x_order) << " " << static_cast<int>(c.y_order) << " seed " << c.seed;
  return text.str();
}

char random_code(Random& random) {
  const int kind = random.below(4);
  return static_cast<char>(kind == 0 ? -128 : kind == 1 ? 127 : kind == 2 ? -1 : random.below(256));
}

void check(const Case& c) {
  Random random(c.seed);
  const std::int64_t k = c.channels / c.window.groups, taps = c.kernel[0] * c.kernel[1];
  std::vector<char> weight(static_cast<std::size_t>(c.outputs * k * taps));
  for (char& code : weight) code = static_cast<char>(random.below(256));
  std::vector<float> w_scale(static_cast<std::size_t>(c.outputs));
  for (float& scale : w_scale) scale = 0.001f * static_cast<float>(1 + random.below(9));
  std::vector<std::int32_t> bias(static_cast<std::size_t>(c.outputs));
  for (std::int32_t& value : bias) value = random.below(20000) - 10000;
  const TensorView weight_view(weight.data(), c.w_dtype, {c.outputs, k, c.kernel[0], c.kernel[1]}),
      scale_view(w_scale.data(), DType::f32, {c.outputs}), bias_view(bias.data(), DType::i32, {c.outputs});
  StaticOptions options;
  options.x = {c.x_dtype, 0.02f, c.x_zero};
  options.y = {c.y_dtype, 0.05f, c.y_zero};
  options.w_zero_point = c.w_zero;
  options.lo = c.lo;
  options.hi = c.hi;
  const auto layer =
      make_static_layer("static.qconv2d", weight_view, scale_view, c.bias ? &bias_view : nullptr, c.window, options);
  const StaticConv2d whole =
      StaticConv2d::create(weight_view, scale_view, c.bias ? &bias_view : nullptr, c.window, options);

  ImageArray x(c.x_order, c.x_dtype, {c.batch, c.channels, c.height, c.width});
  for (std::int64_t i = 0; i < c.batch * c.channels * c.height * c.width; ++i)
    x.bytes[static_cast<std::size_t>(x.at(i))] = random_code(random);
  std::int64_t y_shape[4];
  whole.shape(x.view(), y_shape);
  const ImageArray poison(c.y_order, c.y_dtype, {y_shape[0], y_shape[1], y_shape[2], y_shape[3]});
  ImageArray expected = poison;
  {
    ForceKernel reference("static", "reference");
    whole.run(x.view(), expected.view());
  }

  const DeviceArray<char> device_x(x.bytes);
  const auto moved = move_static_layer(layer, kCuda);
  StaticProblem problem;
  const auto axis = [&](int i) {
    return numerics::WindowAxis{x.shape[2 + i],       c.kernel[i],         c.window.stride[i],
                                c.window.dilation[i], c.window.padding[i], y_shape[2 + i]};
  };
  problem.layer = moved.get();
  problem.batch = c.batch;
  problem.rows = axis(0);
  problem.columns = axis(1);
  problem.x = ImageView(x.view(device_x.get()));
  problem.device = kCuda;

  const int allocated = cuda_host::live_allocations();
  const auto run = [&](const char* kernel_name, void (*kernel)(const StaticProblem&, const StaticBounds&),
                       const StaticBounds& bounds) {
    const DeviceArray<char> device_y(poison.bytes);
    problem.y = ImageView(poison.view(device_y.get()));
    kernel(problem, bounds);
    const std::vector<char> given = device_y.host();
    for (std::size_t i = 0; i < given.size(); ++i)
      ASSERT_EQ(static_cast<int>(given[i]), static_cast<int>(expected.bytes[i]))
          << kernel_name << ", " << describe(c) << ": byte " << i << " of the buffer";
  };
  ASSERT_EQ(static_sm75_int8_implicit_gemm_unsupported_reason(problem) == nullptr, c.implicit_gemm) << describe(c);
  if (c.implicit_gemm) {
    StaticBounds bounds = c.bounds;
    bounds.enough_tiles = 1000;
    run("small tiles", run_static_sm75_int8_implicit_gemm, bounds);
    bounds.enough_tiles = 1;
    if (c.large_tiles) run("large tiles", run_static_sm75_int8_implicit_gemm, bounds);
  }
  const bool warpgroups = c.implicit_gemm && c.window.groups == 1 && k > 0 && k % 128 == 0 &&
                          (c.x_order != ImageOrder::scattered || c.batch == 1);
  ASSERT_EQ(static_sm90_int8_implicit_gemm_unsupported_reason(problem) == nullptr, warpgroups) << describe(c);
  if (warpgroups) {
    StaticBounds bounds = c.bounds;
    for (const std::int64_t enough : {1, 2, 1000}) {  // tiles of 128 results; of 64; of 64 whose k is shared
      bounds.enough_tiles = enough;
      run("warpgroups", run_static_sm90_int8_implicit_gemm, bounds);
    }
  }
  const bool depthwise = c.window.groups == c.channels && c.window.groups == c.outputs && layer->parts == 1;
  ASSERT_EQ(static_depthwise_unsupported_reason(problem) == nullptr, depthwise) << describe(c);
  if (depthwise) run("depthwise", run_static_depthwise, c.bounds);
  ASSERT_EQ(static_simt_unsupported_reason(problem), nullptr);
  run("simt", run_static_simt, c.bounds);
  EXPECT_EQ(cuda_host::live_allocations(), allocated);
}

ConvParams window(std::int64_t stride, std::int64_t padding, std::int64_t dilation, std::int64_t groups = 1) {
  return {{stride, stride}, {padding, padding, padding, padding}, {dilation, dilation}, groups};
}

constexpr ImageOrder kOrders[] = {ImageOrder::channels_last, ImageOrder::channels_first, ImageOrder::scattered};

// Every instance, pixels taken in place and copied, both dtypes of everything, zero points at the ends.
TEST(StaticOnTheMachine, EveryInstance) {
  unsigned cases = 0;
  for (const DType x_dtype : {DType::u8, DType::i8})
    for (const std::int64_t channels : {32, 64, 96, 40, 17})
      for (const ImageOrder order : kOrders) {
        Case c{2, channels, 4, 5, 37, {3, 2}};
        c.window = window(1, 1, 1);
        c.x_dtype = x_dtype;
        c.x_zero = x_dtype == DType::u8 ? (cases % 2 ? 255 : 7) : (cases % 2 ? -128 : 127);
        c.w_dtype = cases % 3 == 2 ? DType::u8 : DType::i8;
        c.w_zero = c.w_dtype == DType::u8 ? (cases % 2 ? 255 : 128) : 0;
        c.y_dtype = cases / 3 % 2 ? DType::i8 : DType::u8;
        c.y_zero = c.y_dtype == DType::u8 ? 100 : -20;
        if (cases % 4 == 1) c.lo = 10, c.hi = 90;
        c.bias = cases % 5 != 1;
        c.x_order = order;
        c.y_order = kOrders[cases / 2 % 3];
        c.large_tiles = order == ImageOrder::channels_last && (channels == 32 || channels == 64);
        c.seed = ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

TEST(StaticOnTheMachine, SeveralTiles) {
  Case c{2, 64, 10, 9, 150, {1, 1}};
  c.large_tiles = true;
  c.seed = 100;
  ASSERT_NO_FATAL_FAILURE(check(c));
  c.y_order = ImageOrder::channels_first;
  c.x_dtype = DType::i8;
  ASSERT_NO_FATAL_FAILURE(check(c));
  c.channels = 45;
  c.outputs = 27;
  c.x_order = c.y_order = ImageOrder::scattered;
  c.w_dtype = DType::u8;
  c.w_zero = 128;
  ASSERT_NO_FATAL_FAILURE(check(c));
}

TEST(StaticOnTheMachine, Windows) {
  std::vector<Case> all;
  const auto add = [&](Case c, const ConvParams& w, bool implicit_gemm = true) {
    c.window = w;
    c.implicit_gemm = implicit_gemm;
    all.push_back(c);
  };
  add({1, 24, 17, 9, 5, {3, 3}}, {{4, 2}, {1, 0, 1, 0}, {1, 1}, 1});
  add({1, 32, 12, 11, 5, {3, 2}}, {{1, 1}, {2, 1, 2, 1}, {3, 2}, 1});
  add({1, 16, 3, 4, 8, {2, 2}}, {{1, 1}, {5, 4, 3, 6}, {1, 1}, 1});  // whole windows in the padding
  add({2, 40, 5, 4, 19, {1, 1}}, window(2, 0, 1));
  add({1, 3, 9, 8, 16, {7, 7}}, window(2, 3, 1));
  add({1, 64, 4, 3, 30, {3, 3}}, window(1, 1, 1, 2));          // groups whose panels are not full
  add({2, 37, 5, 4, 37, {3, 3}}, window(1, 1, 1, 37), false);  // depthwise
  add({1, 10, 5, 5, 30, {3, 3}}, window(2, 1, 1, 10), false);
  add({1, 16, 0, 4, 8, {2, 2}}, window(1, 2, 1));  // no pixels but padding
  unsigned cases = 0;
  for (Case c : all)
    for (const DType dtype : {DType::u8, DType::i8}) {
      c.x_dtype = c.y_dtype = dtype;
      c.x_zero = dtype == DType::u8 ? 200 : -77;
      c.y_zero = dtype == DType::u8 ? 0 : 5;
      c.x_order = kOrders[cases % 3];
      c.y_order = kOrders[(cases + cases / 2) % 3];
      c.seed = 200 + ++cases;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

// Taps that hold several stages, several tiles in both directions and for a thread block, padding on every side, and up
// to eight thread blocks that share k.
TEST(StaticOnTheMachine, Warpgroups) {
  unsigned cases = 0;
  for (const std::int64_t channels : {128, 256})
    for (const std::int64_t kernel : {1, 2, 3, 5}) {
      Case c{1 + cases % 2, channels, 9, 10, cases % 3 == 0 ? 140 : 36 + cases, {kernel, 3}};
      c.window = window(1 + cases % 2, cases % 3, 1);
      c.x_dtype = cases % 2 ? DType::i8 : DType::u8;
      c.x_zero = cases % 2 ? -5 : 131;
      c.x_order = kOrders[cases % 3];
      c.y_order = kOrders[cases / 2 % 3];
      if (cases % 4 == 3) c.bounds.results = 70;
      c.seed = 900 + ++cases;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

// CUTLASS's epilogue: x and y in place and not, channels out that are no whole words, one pixel and many.
TEST(StaticOnTheMachine, Products) {
  unsigned cases = 0;
  for (const std::int64_t channels : {16, 48, 20})
    for (const ImageOrder x_order : kOrders)
      for (const ImageOrder y_order : kOrders) {
        Case c{cases % 7 ? 2 : 1, channels, cases % 2 ? 5 : 1, cases % 5 ? 7 : 1, 16 + cases % 6, {1, 1}};
        c.x_dtype = cases % 2 ? DType::i8 : DType::u8;
        c.x_zero = cases % 2 ? -128 : 255;
        c.y_dtype = cases / 2 % 2 ? DType::i8 : DType::u8;
        c.y_zero = cases / 2 % 2 ? 127 : 0;
        c.x_order = x_order;
        c.y_order = y_order;
        if (cases % 4 == 1) c.lo = -3, c.hi = 40;
        if (cases / 2 % 2) c.bounds.results = 6;
        c.seed = 600 + ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

TEST(StaticOnTheMachine, Depthwise) {
  unsigned cases = 0;
  for (const DType x_dtype : {DType::u8, DType::i8})
    for (const ConvParams& w :
         {window(1, 1, 1), window(2, 1, 1), ConvParams{{1, 1}, {5, 3, 0, 4}, {2, 1}, 1}, window(1, 3, 2)})
      for (const std::int64_t height : {1, 3, 5})
        for (const std::int64_t channels : {40, 5}) {
          Case c{2, channels, 9, 11, channels, {height, cases % 5 == 4 ? 4 : 3}};
          c.window = w;
          c.window.groups = channels;
          c.implicit_gemm = false;
          c.x_dtype = x_dtype;
          c.x_zero = x_dtype == DType::u8 ? (cases % 2 ? 255 : 7) : (cases % 2 ? -128 : 127);
          c.w_dtype = cases % 3 == 2 ? DType::u8 : DType::i8;
          c.w_zero = c.w_dtype == DType::u8 ? (cases % 4 ? 128 : 3) : 0;  // 3: weights that no byte holds
          c.y_dtype = cases / 3 % 2 ? DType::i8 : DType::u8;
          c.y_zero = c.y_dtype == DType::u8 ? 100 : -20;
          c.bias = cases % 5 != 1;
          c.x_order = kOrders[cases / 2 % 3];
          c.y_order = kOrders[cases / 5 % 3];
          if (cases % 8 == 3) c.bounds.results = 5;
          c.seed = 700 + ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
}

// Pixels through scratch memory an image, a row or a few pixels at a time, results in many launches.
TEST(StaticOnTheMachine, ManyPasses) {
  for (const std::int64_t codes : {1, 3 * 32, 2 * 20 * 32})
    for (const std::int64_t kernel : {1, 3}) {
      Case c{5, 17, 5, 4, 18, {kernel, kernel}};
      c.window = window(1, kernel / 2, 1);
      c.bounds.codes = codes;
      c.bounds.results = 7;
      c.x_order = ImageOrder::scattered;
      c.seed = 300;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

TEST(StaticOnTheMachine, LayersMoveThereAndBack) {
  const std::vector<char> weight(5 * 9, '\x07');
  const std::vector<float> scale(5, 0.5f);
  const auto layer = make_static_layer("static.qconv2d", TensorView(weight.data(), DType::i8, {5, 1, 3, 3}),
                                       TensorView(scale.data(), DType::f32, {5}), nullptr, window(1, 1, 1, 5), {});
  ASSERT_NE(layer->depthwise, nullptr);
  EXPECT_EQ(move_static_layer(layer, kCpu), layer);
  const int before = cuda_host::live_allocations();
  {
    const auto moved = move_static_layer(layer, kCuda), back = move_static_layer(moved, kCpu);
    EXPECT_EQ(moved->device, kCuda);
    EXPECT_EQ(back->device, kCpu);
    EXPECT_EQ(cuda_host::live_allocations(), before + 1);
    EXPECT_EQ(back->storage_bytes, layer->storage_bytes);
    EXPECT_EQ(std::memcmp(back->storage.get(), layer->storage.get(), static_cast<std::size_t>(layer->storage_bytes)),
              0);
    const auto offset = [](const StaticLayer& of, const void* array) {
      return static_cast<const char*>(array) - static_cast<const char*>(of.storage.get());
    };
    EXPECT_EQ(offset(*back, back->multipliers), offset(*layer, layer->multipliers));
    EXPECT_EQ(offset(*moved, moved->depthwise), offset(*layer, layer->depthwise));
    EXPECT_EQ(back->multipliers[4], layer->multipliers[4]);
  }
  EXPECT_EQ(cuda_host::live_allocations(), before);
  cuda_host::fail_next("cudaMalloc", cudaErrorMemoryAllocation);
  EXPECT_THROW(move_static_layer(layer, kCuda), CudaError);
}

TEST(StaticOnTheMachine, ErrorsLeaveNothingBehind) {
  const std::vector<char> weight(8 * 17);
  const std::vector<float> scale(1, 1.0f);
  StaticOptions options;
  const auto layer = make_static_layer("static.qlinear", TensorView(weight.data(), DType::i8, {8, 17}),
                                       TensorView(scale.data(), DType::f32, {1}), nullptr, ConvParams{}, options);
  StaticProblem problem;
  problem.layer = layer.get();
  EXPECT_STREQ(static_sm75_int8_implicit_gemm_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(static_depthwise_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(static_simt_unsupported_reason(problem), "it runs on CUDA devices");
  const auto moved = move_static_layer(layer, kCuda);
  const DeviceArray<char> x(std::vector<char>(17 * 4)), y(std::vector<char>(8 * 4));
  problem.layer = moved.get();
  problem.device = kCuda;
  problem.batch = 1;
  problem.columns = {4, 1, 1, 1, 0, 4};
  problem.x.data = x.get();
  problem.y.data = y.get();
  const int before = cuda_host::live_allocations();
  cuda_host::fail_next("cudaMallocFromPoolAsync", cudaErrorMemoryAllocation);
  EXPECT_THROW(run_static_sm75_int8_implicit_gemm(problem, {}), CudaError);
  EXPECT_EQ(cuda_host::live_allocations(), before);
  problem.rows.input = std::int64_t{1} << 29;
  EXPECT_STREQ(static_simt_unsupported_reason(problem),
               "it takes images of up to 2^30 pixels, and extents and windows up to 2^28");
}

// The row `cutlass` took 1x1 windows of stride 1 without groups, 1 to 65536 channels in and up to 4194240 out, and
// stood behind implicit_gemm, which must take all of them.
TEST(StaticOnTheMachine, EveryProblemOfTheRetiredRowHasImplicitGemm) {
  StaticLayer layer{};
  StaticProblem problem;
  problem.layer = &layer;
  problem.device = kCuda;
  problem.batch = 1;
  for (const std::int64_t k : {1, 7, 16, 4096, 65536})
    for (const std::int64_t n : {1, 16, 1000, 4194240})
      for (const std::int64_t rows : {1, 17, 1 << 14})
        for (const std::int64_t columns : {1, 33, 1 << 16}) {
          layer.layout = PackedLayout(n, k, 1, k, 8);
          problem.rows = {rows, 1, 1, 1, 0, rows};
          problem.columns = {columns, 1, 1, 1, 0, columns};
          EXPECT_EQ(static_sm75_int8_implicit_gemm_unsupported_reason(problem), nullptr)
              << n << " x " << k << ", " << rows << " x " << columns;
        }
}

}  // namespace
}  // namespace qcore
