// The CUDA rows of conv2d's table on the machine against the reference kernel of libqcore: the same bits in y (of
// implicit_gemm_float: within the bound of a float sum), and not a byte changed around it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "conv2d/cuda/kernels.h"
#include "device_arrays.h"
#include "image_arrays.h"
#include "numerics/block_scale.h"
#include "runtime/cuda/cuda_check.h"

namespace qcore {
namespace {

struct Case {
  std::int64_t batch, channels, height, width;  // of x
  std::int64_t outputs, kernel[2];
  std::int64_t block_size;
  ConvParams window{};
  int bits = 8;
  Scheme scheme = Scheme::symmetric;
  ComputeMode compute = ComputeMode::int8;
  DType x_dtype = DType::f32, y_dtype = DType::f32;
  bool bias = true;
  FusedActivation activation{};
  ImageOrder x_order = ImageOrder::channels_last, y_order = ImageOrder::channels_last;
  bool special = false;  // x holds a NaN and an Inf
  bool implicit_gemm = true;
  bool large_tiles = false;  // too
  bool every_tile = false;   // of sm90_int8_implicit_gemm
  bool far_window = false;   // reaches further than the copy engine does
  Conv2dBounds bounds{};
  unsigned seed = 0;
};

std::string describe(const Case& c) {
  std::ostringstream text;
  text << "x " << c.batch << "x" << c.channels << "x" << c.height << "x" << c.width << " w " << c.outputs << "x"
       << c.kernel[0] << "x" << c.kernel[1] << " g " << c.block_size << " groups " << c.window.groups << " bits "
       << c.bits << " scheme " << static_cast<int>(c.scheme) << " compute " << static_cast<int>(c.compute) << " orders "
       << static_cast<int>(c.x_order) << " " << static_cast<int>(c.y_order) << " seed " << c.seed;
  return text.str();
}

void expect_same(const std::vector<char>& expected, const std::vector<char>& given, DType dtype, const Case& c) {
  if (expected == given) return;
  const std::int64_t count = static_cast<std::int64_t>(expected.size()) / item_size(dtype);
  for (std::int64_t i = 0; i < count; ++i) {
    const float a = load_float(expected.data(), dtype, i), b = load_float(given.data(), dtype, i);
    if (std::isnan(a) && std::isnan(b)) continue;
    ASSERT_EQ(numerics::float_bits(a), numerics::float_bits(b))
        << describe(c) << ": element " << i << " of the buffer is " << b << ", expected " << a;
  }
}

QuantizedTensor weight_of(const Case& c, Random& random) {
  const std::int64_t k = c.channels / c.window.groups, count = c.outputs * k * c.kernel[0] * c.kernel[1];
  const std::vector<float> values = block_values(random, 1, count, std::max<std::int64_t>(c.block_size, 1));
  QuantizeOptions options;
  options.bits = c.bits;
  options.block_size = c.block_size;
  options.scheme = c.scheme;
  return QuantizedTensor::quantize(TensorView(values.data(), DType::f32, {c.outputs, k, c.kernel[0], c.kernel[1]}),
                                   options);
}

// How far each y [N, Co, Ho, Wo] of the float mode may be from the reference's: both within the bound of the exact
// result, and a rounding to y's dtype.
std::vector<float> tolerances(const Case& c, const ImageArray& x, const ImageArray& y, const PackedWeight& w) {
  const std::int64_t k = w.layout.k, outputs_per_group = c.outputs / c.window.groups;
  const double roundings = static_cast<double>(w.layout.blocks() * w.layout.taps + std::min(c.block_size, k));
  // Read and decoded once, not for each element of y.
  std::vector<double> values, weights;  // [N, C, H, W], and [Co, taps, K]
  for (std::int64_t i = 0; i < c.batch * c.channels * c.height * c.width; ++i)
    values.push_back(std::fabs(double{load_float(x.bytes.data(), c.x_dtype, x.at(i))}));
  for (std::int64_t o = 0; o < c.outputs; ++o)
    for (std::int64_t tap = 0; tap < w.layout.taps; ++tap)
      for (std::int64_t at = 0; at < k; ++at) {
        const std::int64_t p = at / c.block_size;
        weights.push_back(std::fabs(double{numerics::decode(w.code(o, at, tap), w.scale(o, p), w.offset(o, p))}));
      }
  std::vector<float> bounds;
  for (std::int64_t n = 0; n < c.batch; ++n)
    for (std::int64_t o = 0; o < c.outputs; ++o)
      for (std::int64_t i = 0; i < y.shape[2]; ++i)
        for (std::int64_t j = 0; j < y.shape[3]; ++j) {
          double magnitude = 0;
          for (std::int64_t tap = 0; tap < w.layout.taps; ++tap) {
            const std::int64_t row =
                i * c.window.stride[0] + tap / c.kernel[1] * c.window.dilation[0] - c.window.padding[0];
            const std::int64_t column =
                j * c.window.stride[1] + tap % c.kernel[1] * c.window.dilation[1] - c.window.padding[1];
            if (row < 0 || row >= c.height || column < 0 || column >= c.width) continue;
            const std::int64_t plane = c.height * c.width, first = n * c.channels + o / outputs_per_group * k;
            const double* const pixel = values.data() + first * plane + row * c.width + column;
            const double* const codes = weights.data() + (o * w.layout.taps + tap) * k;
            for (std::int64_t at = 0; at < k; ++at) magnitude += pixel[at * plane] * codes[at];
          }
          bounds.push_back(static_cast<float>(2 * 4 * roundings * 0x1p-24 * magnitude * 1.2));
        }
  return bounds;
}

// Moves every y that is close enough to where it is expected.
void settle(const ImageArray& y, const std::vector<float>& tolerance, const std::vector<char>& expected,
            std::vector<char>& given) {
  const float rounding = y.dtype == DType::f32 ? 0x1p-22f : y.dtype == DType::f16 ? 0x1p-10f : 0x1p-7f;
  for (std::size_t i = 0; i < tolerance.size(); ++i) {
    const std::int64_t element = y.at(static_cast<std::int64_t>(i));
    const float a = load_float(expected.data(), y.dtype, element), b = load_float(given.data(), y.dtype, element);
    const bool finite = std::isfinite(a) && std::isfinite(b);
    if (finite ? std::fabs(a - b) <= tolerance[i] + rounding * std::fabs(a) + 1e-7f
               : !std::isfinite(a) && !std::isfinite(b))
      store_float(given.data(), y.dtype, element, a);
  }
}

void check(const Case& c) {
  Random random(c.seed);
  const QuantizedTensor weight = weight_of(c, random);
  std::vector<float> x_values =
      block_values(random, c.batch * c.channels, c.height * c.width, std::max<std::int64_t>(c.width, 1));
  if (c.special) {
    x_values[random.below(static_cast<int>(x_values.size()))] = std::numeric_limits<float>::quiet_NaN();
    x_values[random.below(static_cast<int>(x_values.size()))] = std::numeric_limits<float>::infinity();
  }
  ImageArray x(c.x_order, c.x_dtype, {c.batch, c.channels, c.height, c.width});
  for (std::size_t i = 0; i < x_values.size(); ++i)
    store_float(x.bytes.data(), c.x_dtype, x.at(static_cast<std::int64_t>(i)), x_values[i]);

  std::int64_t y_shape[4];
  conv2d_shape(x.view(), weight, c.window, y_shape);
  const ImageArray poison(c.y_order, c.y_dtype, {y_shape[0], y_shape[1], y_shape[2], y_shape[3]});
  std::vector<float> bias_values(static_cast<std::size_t>(c.outputs));
  for (float& value : bias_values) value = random.normal();
  TensorView bias(bias_values.data(), DType::f32, {c.outputs});
  ImageArray expected = poison;
  {
    ForceKernel reference("conv2d", "reference");
    Conv2dOptions options;
    options.window = c.window;
    options.compute = c.compute;
    options.activation = c.activation;
    conv2d(x.view(), weight, c.bias ? &bias : nullptr, expected.view(), options);
  }

  const DeviceArray<char> device_x(x.bytes);
  const DeviceArray<float> device_bias(bias_values);
  const auto moved = on_device(weight.packed());
  Conv2dProblem problem;
  const auto axis = [&](int i) {
    return numerics::WindowAxis{x.view().shape[2 + i], c.kernel[i],         c.window.stride[i],
                                c.window.dilation[i],  c.window.padding[i], y_shape[2 + i]};
  };
  problem.batch = c.batch;
  problem.groups = c.window.groups;
  problem.rows = axis(0);
  problem.columns = axis(1);
  problem.x = ImageView(x.view(device_x.get()));
  problem.weight = moved.get();
  if (c.bias) {
    problem.bias = bias;
    problem.bias.data = device_bias.get();
  }
  problem.compute = c.compute;
  problem.activation = c.activation;
  problem.device = kCuda;

  const int allocated = cuda_host::live_allocations();
  using Kernel = void (*)(const Conv2dProblem&, const Conv2dBounds&);
  const auto result = [&](Kernel kernel, const Conv2dBounds& bounds) {
    const DeviceArray<char> device_y(poison.bytes);
    problem.y = ImageView(poison.view(device_y.get()));
    kernel(problem, bounds);
    return device_y.host();
  };
  const auto run = [&](Kernel kernel, const Conv2dBounds& bounds) {
    expect_same(expected.bytes, result(kernel, bounds), c.y_dtype, c);
  };
  const bool integer8 = c.compute == ComputeMode::int8 || c.compute == ComputeMode::int8_asym;
  ASSERT_EQ(sm80_int8_implicit_gemm_unsupported_reason(problem) == nullptr, integer8 && c.implicit_gemm) << describe(c);
  if (integer8 && c.implicit_gemm)
    for (const std::int64_t enough_tiles : {1, 1000}) {
      if (enough_tiles == 1 && !c.large_tiles) continue;
      Conv2dBounds bounds = c.bounds;
      bounds.enough_tiles = enough_tiles;
      run(run_sm80_int8_implicit_gemm, bounds);
    }
  const std::int64_t block = std::min(c.block_size, c.channels);
  const bool whole_blocks = c.channels % block == 0 && (block == 32 || block == 64 || block % 128 == 0);
  // Tiles of warps take no offsets, those of warpgroups what the copy engine does.
  const bool warps = c.scheme == Scheme::symmetric && c.compute == ComputeMode::int8 && block <= 128;
  const bool warpgroups = c.channels % 64 == 0 && c.height > 0 && c.width > 0 && !c.far_window;
  const bool sm90 = integer8 && c.implicit_gemm && c.window.groups == 1 && whole_blocks && (warps || warpgroups);
  ASSERT_EQ(sm90_int8_implicit_gemm_unsupported_reason(problem) == nullptr, sm90) << describe(c);
  if (sm90) {
    run(run_sm90_int8_implicit_gemm, c.bounds);
    for (int i = warps ? 0 : 3; c.every_tile && i < (warpgroups ? kSm90ConvTiles : 3); ++i) {
      Conv2dBounds bounds = c.bounds;
      bounds.tile = i;
      run(run_sm90_int8_implicit_gemm, bounds);
    }
  }
  const bool floating = c.compute == ComputeMode::floating;
  ASSERT_EQ(sm80_float_implicit_gemm_unsupported_reason(problem) == nullptr, floating && c.implicit_gemm)
      << describe(c);
  std::vector<float> tolerance;  // computed for the first kernel of float sums
  const auto run_float = [&](Kernel kernel, const Conv2dBounds& bounds) {
    if (tolerance.empty()) tolerance = tolerances(c, x, expected, weight.packed());
    std::vector<char> given = result(kernel, bounds);
    settle(expected, tolerance, expected.bytes, given);
    expect_same(expected.bytes, given, c.y_dtype, c);
  };
  for (const std::int64_t enough_tiles : {1, 2, 1000}) {
    if (!floating || !c.implicit_gemm || (enough_tiles < 1000 && !c.large_tiles)) continue;
    Conv2dBounds bounds = c.bounds;
    bounds.enough_tiles = enough_tiles;
    run_float(run_sm80_float_implicit_gemm, bounds);
  }
  const bool of_warpgroups = floating && c.implicit_gemm && c.x_dtype != DType::f32 && c.scheme == Scheme::symmetric &&
                             c.window.groups == 1 && c.channels % 64 == 0 && c.x_order == ImageOrder::channels_last &&
                             c.channels % block == 0 && (block == c.channels || block % 32 == 0);
  ASSERT_EQ(sm90_float_implicit_gemm_unsupported_reason(problem) == nullptr, of_warpgroups) << describe(c);
  for (const int spread : {-1, 0, 1}) {
    Conv2dBounds bounds = c.bounds;
    bounds.tile = spread;
    if (of_warpgroups) run_float(run_sm90_float_implicit_gemm, bounds);
  }
  const bool depthwise = c.window.groups == c.channels && c.window.groups == c.outputs;
  ASSERT_EQ(conv2d_depthwise_unsupported_reason(problem) == nullptr, depthwise) << describe(c);
  if (depthwise) run(run_conv2d_depthwise, c.bounds);
  ASSERT_EQ(conv2d_simt_unsupported_reason(problem), nullptr);
  run(run_conv2d_simt, c.bounds);
  EXPECT_EQ(cuda_host::live_allocations(), allocated);
}

ConvParams window(std::int64_t stride, std::int64_t padding, std::int64_t dilation, std::int64_t groups = 1) {
  return {{stride, stride}, {padding, padding, padding, padding}, {dilation, dilation}, groups};
}

constexpr ImageOrder kOrders[] = {ImageOrder::channels_last, ImageOrder::channels_first, ImageOrder::scattered};
constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};

// Every instance: blocks that a stage holds and others, both widths of codes and kinds of offsets, tails everywhere.
TEST(Conv2dOnTheMachine, EveryInstance) {
  unsigned cases = 0;
  for (const std::int64_t block_size : {32, 64, 128, 96})
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
        for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::int8_asym}) {
          Case c{1, block_size + 13, 3, 4, 21, {2, 2}, block_size};
          c.window = window(1, 1, 1);
          c.large_tiles = scheme == Scheme::symmetric && compute == ComputeMode::int8;
          c.bits = bits;
          c.scheme = scheme;
          c.compute = compute;
          c.x_order = kOrders[cases % 3];
          c.y_order = kOrders[cases / 3 % 3];
          c.x_dtype = kDTypes[cases % 3];
          c.y_dtype = kDTypes[cases / 2 % 3];
          c.bias = cases % 4 != 1;
          if (cases % 5 == 0) c.activation = {ActivationKind::clamp, -0.5f, 6.0f};
          if (cases % 5 == 1) c.activation = {ActivationKind::sigmoid, 0, 0};
          c.special = cases % 6 == 5;
          c.seed = ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
}

// Every instance of the tiles of sm_90: blocks of taps that share a stage, blocks of several stages, results and
// channels that do not fill a tile, results that make pairs of tiles, images backwards, and channels that only tiles of
// warps take.
TEST(Conv2dOnTheMachine, EverySm90Instance) {
  unsigned cases = 0;
  for (const std::int64_t block_size : {32, 64, 128, 256})
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
        for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::int8_asym}) {
          const std::int64_t blocks = block_size == 256 ? 1 : block_size == 32 ? 2 + cases % 5 : 1 + cases % 3;
          Case c{2, blocks * block_size, 3, 4, 21, {2, 2}, block_size};
          c.window = window(1, 1, 1);
          c.every_tile = true;
          c.bits = bits;
          c.scheme = scheme;
          c.compute = compute;
          c.x_order = kOrders[cases % 3];
          c.y_order = kOrders[cases / 3 % 3];
          c.x_dtype = kDTypes[cases % 3];
          c.y_dtype = kDTypes[cases / 2 % 3];
          c.bias = cases % 4 != 1;
          if (cases % 5 == 0) c.activation = {ActivationKind::clamp, -0.5f, 6.0f};
          if (cases % 5 == 1) c.activation = {ActivationKind::silu, 0, 0};
          c.special = cases % 6 == 5;
          c.seed = 3000 + ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
}

// Windows with strides, dilation and uneven padding, several images at a time and in many passes, on tiles of sm_90.
TEST(Conv2dOnTheMachine, Sm90Windows) {
  std::vector<Case> all;
  const auto add = [&](Case c, const ConvParams& w) {
    c.window = w;
    all.push_back(c);
  };
  add({1, 64, 9, 7, 40, {3, 3}, 32}, {{2, 1}, {1, 0, 2, 1}, {1, 2}, 1});
  add({3, 32, 5, 6, 130, {3, 2}, 32}, window(1, 1, 1));
  add({3, 64, 5, 6, 130, {3, 2}, 64}, window(1, 1, 1));
  add({2, 128, 9, 16, 256, {3, 3}, 64}, window(1, 1, 1));  // pairs of tiles that share their weight
  add({2, 192, 6, 7, 24, {3, 1}, 64}, {{1, 2}, {1, 0, 1, 0}, {2, 1}, 1});
  add({1, 128, 3, 4, 16, {2, 2}, 64}, {{1, 1}, {5, 4, 3, 6}, {1, 1}, 1});  // whole windows in the padding
  add({2, 32, 12, 11, 17, {1, 1}, 32}, window(2, 0, 1));
  add({1, 64, 0, 4, 20, {2, 2}, 64}, window(1, 2, 1));  // no pixels but padding
  add({1, 64, 20, 3, 20, {2, 1}, 64}, window(9, 0, 1));
  all.back().far_window = true;
  add({5, 96, 5, 4, 18, {3, 3}, 96}, window(1, 1, 1));  // refused: 96 is no block of a tile's
  unsigned cases = 0;
  for (Case c : all)
    for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::int8_asym}) {
      c.compute = compute;
      c.every_tile = true;
      c.bits = cases % 2 ? 4 : 8;
      c.x_order = kOrders[cases % 3];
      c.y_order = kOrders[(cases + cases / 4) % 3];
      if (cases % 3 == 1) c.bounds.codes = 1, c.bounds.results = 7;
      c.seed = 4000 + ++cases;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

// Every instance for float activations: one medium tile has 64 channels, a large one 128.
TEST(Conv2dOnTheMachine, EveryFloatInstance) {
  unsigned cases = 0;
  for (const std::int64_t block_size : {32, 64, 96, 200})
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
        for (const DType dtype : kDTypes) {
          // Whole units of 8 channels, which are read in place where the layout allows it, and others.
          const std::int64_t channels = block_size == 200 ? 45 : block_size + (cases % 2 ? 13 : 16);
          Case c{1, channels, 3, 4, 70, {2, 2}, block_size};
          c.window = window(1, 1, 1);
          c.compute = ComputeMode::floating;
          c.large_tiles = true;
          c.bits = bits;
          c.scheme = scheme;
          c.x_dtype = dtype;
          c.x_order = kOrders[cases / 2 % 3];
          c.y_order = kOrders[cases / 3 % 3];
          c.y_dtype = kDTypes[cases / 2 % 3];
          c.bias = cases % 4 != 1;
          if (cases % 5 == 0) c.activation = {ActivationKind::clamp, -0.5f, 6.0f};
          if (cases % 5 == 1) c.activation = {ActivationKind::silu, 0, 0};
          c.special = cases % 6 == 5;
          c.seed = 1000 + ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
}

// Float activations in place: 16-bit channels_last of whole units, with strides, groups and blocks that end with taps.
TEST(Conv2dOnTheMachine, FloatInPlace) {
  unsigned cases = 0;
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const std::int64_t groups : {1, 2})
      for (const std::int64_t channels : {8, 40, 96, 160}) {
        Case c{2, groups * channels, 6, 5, groups * 80, {3, 2}, channels == 40 ? 40 : 64};
        c.window = {{2, 1}, {1, 0, 2, 1}, {1, 2}, groups};
        c.compute = ComputeMode::floating;
        c.large_tiles = true;
        c.bits = cases % 2 ? 4 : 8;
        c.scheme = cases / 2 % 2 ? Scheme::symmetric : Scheme::asymmetric;
        c.x_dtype = c.y_dtype = dtype;
        c.y_order = kOrders[cases % 2];
        c.seed = 2000 + ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

// Pixels that the copy engine finds: steps of k within a tap and across taps, an odd number of stages, windows that
// reach over every edge, strides, gaps between taps, results of several tiles, launches that begin within an image.
TEST(Conv2dOnTheMachine, FloatOfWarpgroups) {
  unsigned cases = 0;
  for (const std::int64_t channels : {64, 128, 192})
    for (const std::int64_t block_size : {32, 64, 128, 1000})
      for (const ConvParams& w : {window(1, 1, 1), ConvParams{{2, 1}, {1, 0, 2, 1}, {1, 2}, 1}, window(3, 0, 1)}) {
        if (block_size == 128 && channels != 128) continue;
        Case c{2, channels, 10, 9, cases % 3 == 0 ? 140 : 30 + cases, {3, cases % 2 ? 3 : 1}, block_size};
        c.window = w;
        c.compute = ComputeMode::floating;
        c.bits = cases % 2 ? 4 : 8;
        c.x_dtype = cases % 3 == 1 ? DType::bf16 : DType::f16;
        c.y_dtype = kDTypes[cases % 3];
        c.y_order = kOrders[cases / 2 % 3];
        c.bias = cases % 4 != 1;
        if (cases % 5 == 0) c.activation = {ActivationKind::clamp, -0.5f, 6.0f};
        if (cases % 5 == 1) c.activation = {ActivationKind::silu, 0, 0};
        c.special = cases % 6 == 5;
        if (cases % 4 == 3) c.bounds.results = 70;
        c.seed = 3000 + ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

// Several tiles along both axes, and rings of stages that turn under several taps.
TEST(Conv2dOnTheMachine, SeveralTiles) {
  unsigned cases = 0;
  for (const ImageOrder order : kOrders) {
    Case c{2, 40, 9, 8, 140, {2, 2}, 40};
    c.window = window(1, 1, 1);
    c.large_tiles = order == ImageOrder::channels_last;
    c.x_order = order;
    c.y_order = kOrders[++cases % 3];
    for (const ComputeMode compute : {cases % 2 ? ComputeMode::int8 : ComputeMode::int8_asym, ComputeMode::floating}) {
      c.compute = compute;
      c.seed = 100 + cases;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

TEST(Conv2dOnTheMachine, Windows) {
  std::vector<Case> all;
  const auto add = [&](Case c, const ConvParams& w, bool implicit_gemm = true) {
    c.window = w;
    c.implicit_gemm = implicit_gemm;
    all.push_back(c);
  };
  add({1, 24, 17, 9, 5, {3, 3}, 24}, {{4, 2}, {1, 0, 1, 0}, {1, 1}, 1});
  add({1, 20, 12, 11, 5, {3, 2}, 20}, {{1, 1}, {2, 1, 2, 1}, {3, 2}, 1});
  add({1, 16, 3, 4, 8, {2, 2}, 16}, {{1, 1}, {5, 4, 3, 6}, {1, 1}, 1});  // whole windows in the padding
  add({2, 40, 5, 4, 19, {1, 1}, 40}, window(2, 0, 1));
  add({1, 12, 4, 12, 6, {1, 7}, 12}, {{1, 1}, {0, 3, 0, 3}, {1, 1}, 1});
  add({1, 3, 9, 8, 16, {7, 7}, 3}, window(2, 3, 1));
  add({1, 15, 4, 3, 9, {2, 2}, 5}, window(1, 1, 1), false);  // several blocks of 5
  add({1, 96, 4, 3, 64, {3, 3}, 32}, window(1, 1, 1, 2));    // groups of whole panels
  add({1, 24, 4, 4, 36, {3, 3}, 8}, window(1, 1, 1, 3), false);
  add({2, 37, 5, 4, 37, {3, 3}, 1}, window(1, 1, 1, 37), false);  // depthwise
  add({1, 10, 5, 5, 30, {3, 3}, 4}, window(2, 1, 1, 10), false);
  add({1, 16, 0, 4, 8, {2, 2}, 16}, window(1, 2, 1));  // no pixels but padding
  unsigned cases = 0;
  for (Case c : all)
    for (const ComputeMode compute :
         {ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16, ComputeMode::floating}) {
      c.compute = compute;
      c.bits = cases % 2 ? 4 : 8;
      c.scheme = cases / 4 % 2 ? Scheme::asymmetric : Scheme::symmetric;
      c.x_order = kOrders[cases % 3];
      c.y_order = kOrders[(cases + cases / 4) % 3];
      c.seed = 200 + ++cases;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

// Every instance of the depthwise kernel: channels at once and tails, windows that slide and others, square ones over
// pixels of neighboring channels, results in one launch and in many.
TEST(Conv2dOnTheMachine, Depthwise) {
  unsigned cases = 0;
  for (const ComputeMode compute :
       {ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16, ComputeMode::floating})
    for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
      for (const DType dtype : kDTypes)
        for (const int kind : {0, 1, 2}) {
          const bool square = kind == 2;
          const std::int64_t channels = cases % 2 ? 40 : cases % 4 || square ? 2 : 37;
          Case c{2, channels, 6 + cases / 3 % 2, 9 + cases / 6 % 2, channels, {3, 3}, 1 + cases % 3};
          c.window = window(kind == 1 ? 2 : 1, 1, 1, channels);
          if (square && cases % 4 == 2) c.window = {{1, 1}, {3, 0, 0, 4}, {1, 1}, channels};
          c.implicit_gemm = false;
          c.compute = compute;
          c.scheme = scheme;
          c.bits = cases / 2 % 2 ? 4 : 8;
          c.x_dtype = dtype;
          c.y_dtype = kDTypes[(cases / 3 + cases / 9) % 3];
          if (!square) c.x_order = kOrders[cases / 4 % 3], c.y_order = kOrders[cases / 5 % 3];
          c.bias = cases % 5 != 1;
          if (cases % 7 == 0) c.activation = {ActivationKind::clamp, -0.5f, 6.0f};
          c.special = cases % 6 == 5;
          if (cases % 8 == 3) c.bounds.results = 5;
          c.seed = 400 + ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
  for (const ConvParams& w :
       {ConvParams{{3, 1}, {2, 2, 1, 0}, {1, 1}, 24}, ConvParams{{1, 2}, {4, 4, 4, 4}, {2, 3}, 24},
        ConvParams{{1, 1}, {3, 0, 3, 0}, {2, 1}, 24}})
    for (const std::int64_t width : {3, 4}) {
      Case c{2, 24, 9, 8, 24, {5, width}, 64};
      c.window = w;
      c.implicit_gemm = false;
      c.scheme = Scheme::asymmetric;
      c.seed = 500 + ++cases;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

// Images through scratch memory one at a time, results in many launches.
TEST(Conv2dOnTheMachine, ManyPasses) {
  for (const ComputeMode compute :
       {ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16, ComputeMode::floating})
    for (const std::int64_t codes : {1, 2 * 20 * 32}) {
      Case c{5, 17, 5, 4, 18, {3, 3}, 32};
      c.window = window(1, 1, 1);
      c.compute = compute;
      c.scheme = Scheme::asymmetric;
      c.bounds.codes = codes;
      c.bounds.results = 7;
      c.x_order = ImageOrder::scattered;
      c.seed = 300;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

TEST(Conv2dOnTheMachine, UnsupportedReason) {
  Random random(1);
  const auto weight = [&](std::int64_t outputs, std::int64_t channels, std::int64_t block_size) {
    Case c{1, channels, 4, 4, outputs, {3, 3}, block_size};
    return weight_of(c, random);
  };
  const QuantizedTensor usual = weight(32, 64, 32), odd = weight(32, 64, 20);
  Conv2dProblem problem;
  problem.weight = &usual.packed();
  EXPECT_STREQ(sm80_int8_implicit_gemm_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(sm80_float_implicit_gemm_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(conv2d_depthwise_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(conv2d_simt_unsupported_reason(problem), "it runs on CUDA devices");
  problem.device = kCuda;
  EXPECT_EQ(sm80_int8_implicit_gemm_unsupported_reason(problem), nullptr);
  EXPECT_EQ(conv2d_simt_unsupported_reason(problem), nullptr);
  EXPECT_STREQ(conv2d_depthwise_unsupported_reason(problem), "it takes one input and one output channel per group");
  problem.groups = 4;
  EXPECT_STREQ(sm80_int8_implicit_gemm_unsupported_reason(problem),
               "it takes groups of a multiple of 16 output channels");
  problem.groups = 2;
  EXPECT_EQ(sm80_int8_implicit_gemm_unsupported_reason(problem), nullptr);
  EXPECT_STREQ(sm90_int8_implicit_gemm_unsupported_reason(problem), "it takes one group");
  problem.groups = 1;
  EXPECT_EQ(sm90_int8_implicit_gemm_unsupported_reason(problem), nullptr);
  const QuantizedTensor ragged = weight(32, 80, 32);
  problem.weight = &ragged.packed();
  EXPECT_STREQ(sm90_int8_implicit_gemm_unsupported_reason(problem),
               "it takes whole blocks of 32, 64 or a multiple of 128 channels");
  problem.weight = &usual.packed();
  problem.compute = ComputeMode::int8_asym;
  EXPECT_EQ(sm90_int8_implicit_gemm_unsupported_reason(problem), nullptr);
  problem.columns.stride = 9;
  EXPECT_STREQ(sm90_int8_implicit_gemm_unsupported_reason(problem),
               "with offsets or more than 128 channels in a block it takes multiples of 64 channels, windows of up to "
               "256 pixels, strides up to 8 and padding up to 127");
  problem.columns.stride = 1;
  problem.compute = ComputeMode::int16;
  EXPECT_STREQ(sm90_int8_implicit_gemm_unsupported_reason(problem), "it computes int8 and int8_asym only");
  EXPECT_STREQ(sm80_int8_implicit_gemm_unsupported_reason(problem), "it computes int8 and int8_asym only");
  EXPECT_STREQ(sm80_float_implicit_gemm_unsupported_reason(problem), "it computes float only");
  problem.compute = ComputeMode::floating;
  EXPECT_EQ(sm80_float_implicit_gemm_unsupported_reason(problem), nullptr);
  problem.weight = &odd.packed();
  EXPECT_STREQ(sm80_float_implicit_gemm_unsupported_reason(problem), "it takes block sizes that are multiples of 32");
  problem.compute = ComputeMode::int8;
  EXPECT_STREQ(sm80_int8_implicit_gemm_unsupported_reason(problem), "it takes block sizes that are multiples of 32");
  problem.rows.input = std::int64_t{1} << 29;
  const QuantizedTensor single = weight(8, 1, 1);
  problem.weight = &single.packed();
  problem.groups = 8;
  EXPECT_STREQ(conv2d_depthwise_unsupported_reason(problem),
               "it takes images of up to 2^30 pixels, and extents and windows up to 2^28");
  EXPECT_STREQ(conv2d_simt_unsupported_reason(problem),
               "it takes images of up to 2^30 pixels, and extents and windows up to 2^28");
}

TEST(Conv2dOnTheMachine, ErrorsLeaveNothingBehind) {
  Random random(2);
  const Case c{1, 32, 4, 4, 8, {1, 1}, 32};
  const auto moved = on_device(weight_of(c, random).packed());
  const DeviceArray<float> x(std::vector<float>(32 * 16)), y(std::vector<float>(8 * 16));
  Conv2dProblem problem;
  problem.batch = 1;
  problem.rows = problem.columns = {4, 1, 1, 1, 0, 4};
  problem.x.data = x.get();
  problem.y.data = y.get();
  problem.weight = moved.get();
  problem.device = kCuda;
  const int before = cuda_host::live_allocations();
  using Run = void (*)(const Conv2dProblem&, const Conv2dBounds&);
  for (const Run kernel : {Run{run_sm90_int8_implicit_gemm}, Run{run_sm80_int8_implicit_gemm},
                           Run{run_sm80_float_implicit_gemm}, Run{run_conv2d_simt}}) {
    cuda_host::fail_next("cudaMallocFromPoolAsync", cudaErrorMemoryAllocation);
    EXPECT_THROW(kernel(problem, {}), CudaError);
    EXPECT_EQ(cuda_host::live_allocations(), before);
  }
}

}  // namespace
}  // namespace qcore
