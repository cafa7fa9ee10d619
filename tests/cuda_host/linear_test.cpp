// The CUDA rows of linear's table on the machine against the reference kernel of libqcore: the same bits in y, or for
// float sums in another order a result within the specification's bound; and not a byte changed around y.

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "device_arrays.h"
#include "gemm/cuda/sm90_int8_mma/arguments.cuh"
#include "linear/cuda/kernels.h"
#include "numerics/block_scale.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

enum class Layout { contiguous, padded, transposed, broken, aligned };
constexpr Layout kLayouts[] = {Layout::contiguous, Layout::padded, Layout::transposed, Layout::broken};

// A [rows, columns] array in a larger buffer.
struct Placement {
  std::int64_t first = 0, size = 0;  // of the buffer, in elements
  RowView rows;
  TensorView view;
};

Placement place(Layout layout, DType dtype, std::int64_t rows, std::int64_t columns) {
  Placement at;
  at.first = layout == Layout::contiguous ? 16 : 3;  // aligned, or not
  std::int64_t row_stride = columns, column_stride = 1;
  if (layout == Layout::padded) row_stride = columns + 5;
  if (layout == Layout::transposed) row_stride = 1, column_stride = rows + 2;
  // Two leading axes where there are rows for it; "broken" ones do not merge, and the outer runs backwards.
  const std::int64_t outer = rows % 2 == 0 && rows > 0 ? 2 : 1, inner = rows / outer;
  std::int64_t outer_stride = inner * row_stride;
  if (layout == Layout::broken) {
    outer_stride = -(outer_stride + 7);
    at.first -= (outer - 1) * outer_stride;
  }
  // One leading axis, rows at multiples of 16 elements.
  if (layout == Layout::aligned) at.first = 16, row_stride = round_up(columns, 16);
  at.size = at.first + rows * std::abs(row_stride) + columns * column_stride + 16;

  at.rows.dtype = at.view.dtype = dtype;
  at.rows.column_stride = column_stride;
  at.rows.leading = 2;
  at.view.rank = 3;
  if (layout == Layout::aligned) outer_stride = inner * row_stride;
  const std::int64_t shape[] = {outer, inner, columns}, strides[] = {outer_stride, row_stride, column_stride};
  for (int axis = 0; axis < 3; ++axis) {
    at.view.shape[axis] = shape[axis];
    at.view.strides[axis] = strides[axis];
    if (axis < 2) at.rows.shape[axis] = shape[axis];
    if (axis < 2) at.rows.strides[axis] = strides[axis];
  }
  if (layout == Layout::aligned) at.rows.leading = 1, at.rows.shape[0] = rows, at.rows.strides[0] = row_stride;
  return at;
}

std::vector<char> filled(const Placement& at, const std::vector<float>& values, std::int64_t columns) {
  std::vector<char> buffer(static_cast<std::size_t>(at.size * item_size(at.view.dtype)), '\xcd');
  if (columns == 0) return buffer;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i)
    store_float(buffer.data(), at.view.dtype,
                at.first + at.rows.row_offset(i / columns) + i % columns * at.rows.column_stride, values[i]);
  return buffer;
}

std::vector<float> seen_values(const std::vector<char>& buffer, const Placement& at, std::int64_t rows,
                               std::int64_t columns) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows * columns; ++i)
    values.push_back(load_float(buffer.data(), at.view.dtype,
                                at.first + at.rows.row_offset(i / columns) + i % columns * at.rows.column_stride));
  return values;
}

struct Case {
  std::int64_t m, n, k, block_size;
  int bits = 4;
  Scheme scheme = Scheme::symmetric;
  ComputeMode compute = ComputeMode::int8;
  DType x_dtype = DType::f32, y_dtype = DType::f32, bias_dtype = DType::f32;
  bool bias = true;
  FusedActivation activation{};
  Layout x_layout = Layout::contiguous, y_layout = Layout::contiguous;
  bool special = false;      // x holds a NaN and an Inf
  bool large_tiles = false;  // of the kernels that have them, too
  bool every_tile = false;   // of int8_mma
  unsigned seed = 0;
};

std::string describe(const Case& c) {
  std::ostringstream text;
  text << "M " << c.m << " N " << c.n << " K " << c.k << " g " << c.block_size << " bits " << c.bits << " scheme "
       << static_cast<int>(c.scheme) << " compute " << static_cast<int>(c.compute) << " x " << name(c.x_dtype) << " y "
       << name(c.y_dtype) << " bias " << (c.bias ? name(c.bias_dtype) : "none") << " activation "
       << static_cast<int>(c.activation.kind) << " layouts " << static_cast<int>(c.x_layout) << " "
       << static_cast<int>(c.y_layout) << " special " << c.special << " seed " << c.seed;
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

// How far each y [M, N] of the float mode may be from the reference's: both within the bound of the exact result, and a
// rounding to y's dtype.
std::vector<float> tolerances(const Case& c, const std::vector<float>& x, const PackedWeight& w) {
  std::vector<float> bounds;
  for (std::int64_t m = 0; m < c.m; ++m)
    for (std::int64_t n = 0; n < c.n; ++n) {
      double magnitude = 0;
      for (std::int64_t k = 0; k < c.k; ++k) {
        const std::int64_t p = k / c.block_size;
        magnitude +=
            std::fabs(double{x[m * c.k + k]} * double{numerics::decode(w.code(n, k), w.scale(n, p), w.offset(n, p))});
      }
      const double roundings = static_cast<double>(w.layout.blocks() + std::min(c.block_size, c.k));
      bounds.push_back(static_cast<float>(2 * 4 * roundings * 0x1p-24 * magnitude * 1.2));
    }
  return bounds;
}

// Moves every y that is close enough to where it is expected.
void settle(const Case& c, const Placement& at, const std::vector<float>& tolerance, const std::vector<char>& expected,
            std::vector<char>& given) {
  const float rounding = c.y_dtype == DType::f32 ? 0x1p-22f : c.y_dtype == DType::f16 ? 0x1p-10f : 0x1p-7f;
  for (std::int64_t i = 0; i < c.m * c.n; ++i) {
    const std::int64_t element = at.first + at.rows.row_offset(i / c.n) + i % c.n * at.rows.column_stride;
    const float a = load_float(expected.data(), c.y_dtype, element), b = load_float(given.data(), c.y_dtype, element);
    const bool finite = std::isfinite(a) && std::isfinite(b);
    if (finite ? std::fabs(a - b) <= tolerance[i] + rounding * std::fabs(a) + 1e-7f
               : !std::isfinite(a) && !std::isfinite(b))
      store_float(given.data(), c.y_dtype, element, a);
  }
}

ScratchBounds with_tiles(ScratchBounds bounds, std::int64_t enough_tiles) {
  bounds.enough_tiles = enough_tiles;
  return bounds;
}

void check(const Case& c, const ScratchBounds& bounds = {}) {
  Random random(c.seed);
  const QuantizedTensor weight = random_weight(random, c.n, c.k, c.block_size, c.bits, c.scheme);
  std::vector<float> x_values = block_values(random, c.m, c.k, c.block_size);
  if (c.special && !x_values.empty()) {
    x_values[random.below(static_cast<int>(x_values.size()))] = std::numeric_limits<float>::quiet_NaN();
    x_values[random.below(static_cast<int>(x_values.size()))] = std::numeric_limits<float>::infinity();
  }
  const Placement x_at = place(c.x_layout, c.x_dtype, c.m, c.k), y_at = place(c.y_layout, c.y_dtype, c.m, c.n);
  const Placement bias_at = place(Layout::transposed, c.bias_dtype, 1, c.n);
  std::vector<float> bias_values(static_cast<std::size_t>(c.n));
  for (float& value : bias_values) value = random.normal();
  const std::vector<char> x = filled(x_at, x_values, c.k), bias = filled(bias_at, bias_values, c.n),
                          poison = filled(y_at, {}, c.n);

  const auto view = [](const Placement& at, const std::vector<char>& buffer) {
    TensorView v = at.view;
    v.data = const_cast<char*>(buffer.data()) + at.first * item_size(v.dtype);
    return v;
  };
  TensorView bias_view = view(bias_at, bias);
  bias_view.rank = 1;
  bias_view.shape[0] = c.n;
  bias_view.strides[0] = bias_at.rows.column_stride;
  std::vector<char> expected = poison;
  {
    ForceKernel reference("linear", "reference");
    LinearOptions options;
    options.compute = c.compute;
    options.activation = c.activation;
    linear(view(x_at, x), weight, c.bias ? &bias_view : nullptr, view(y_at, expected), options);
  }

  const DeviceArray<char> device_x(x), device_bias(bias);
  const auto moved = on_device(weight.packed());
  LinearProblem problem;
  problem.m = c.m;
  problem.x = x_at.rows;
  problem.x.data = device_x.get() + x_at.first * item_size(c.x_dtype);
  problem.y = y_at.rows;
  problem.weight = moved.get();
  if (c.bias) {
    problem.bias = bias_view;
    problem.bias.data = device_bias.get() + bias_at.first * item_size(c.bias_dtype);
    problem.bias.device = kCuda;
  }
  problem.compute = c.compute;
  problem.activation = c.activation;
  problem.device = kCuda;

  const int allocated = cuda_host::live_allocations();
  using Kernel = void (*)(const LinearProblem&, const ScratchBounds&);
  const auto run = [&](Kernel kernel, std::int64_t enough_tiles = 0, int tile = -1) {
    ScratchBounds given = bounds;
    given.enough_tiles = given.multiprocessors = enough_tiles;
    given.tile = tile;
    const DeviceArray<char> device_y(poison);
    problem.y.data = device_y.get() + y_at.first * item_size(c.y_dtype);
    kernel(problem, given);
    expect_same(expected, device_y.host(), c.y_dtype, c);
  };
  if (!sm80_int8_mma_unsupported_reason(problem)) {
    if (c.large_tiles) run(run_sm80_int8_mma, 1);
    run(run_sm80_int8_mma, 1000);
  }
  if (!sm90_int8_mma_unsupported_reason(problem)) {
    run(run_sm90_int8_mma);
    const bool one_block = weight.packed().layout.block_size > 128;
    for (int i = 0; c.every_tile && i < sm90_int8_mma::kSizes; ++i)
      if (!one_block || i < sm90_int8_mma::kOneBlockSizes) run(run_sm90_int8_mma, 0, i);
  }
  if (!sm90_int8_wgmma_unsupported_reason(problem)) {
    if (c.large_tiles) {
      run(run_sm90_int8_wgmma, 1);
      for (const std::int64_t rows : {64, 128}) run(run_sm90_int8_wgmma, ceil_div(c.n, 128) * ceil_div(c.m, rows));
    }
    run(run_sm90_int8_wgmma, 1000);
  }
  ASSERT_EQ(simt_unsupported_reason(problem), nullptr);
  run(run_simt);
  if (c.compute == ComputeMode::int8 || c.compute == ComputeMode::int8_asym) {
    ASSERT_EQ(sm75_int8_sliced_unsupported_reason(problem), nullptr);
    run(run_sm75_int8_sliced);
  }
  const auto run_close = [&](const auto& kernel) {
    const DeviceArray<char> device_y(poison);
    problem.y.data = device_y.get() + y_at.first * item_size(c.y_dtype);
    kernel();
    std::vector<char> given = device_y.host();
    if (c.compute == ComputeMode::floating) {
      const std::vector<float> x_seen = seen_values(x, x_at, c.m, c.k);
      settle(c, y_at, tolerances(c, x_seen, weight.packed()), expected, given);
    }
    expect_same(expected, given, c.y_dtype, c);
  };
  // Float activations are gemv's on devices before 8.0 only; its code is the same on all.
  LinearProblem on_turing = problem;
  on_turing.device = kTuring;
  if (!sm75_gemv_unsupported_reason(on_turing)) run_close([&] { run_sm75_gemv(problem, bounds); });
  if (!sm80_float_mma_unsupported_reason(problem)) {
    if (c.large_tiles) run_close([&] { run_sm80_float_mma(problem, with_tiles(bounds, 1)); });
    run_close([&] { run_sm80_float_mma(problem, with_tiles(bounds, 1000)); });
  }
  if (!sm90_float_wgmma_unsupported_reason(problem)) {
    // On a single multiprocessor large tiles are the best, on many small ones and parts of k.
    for (const std::int64_t multiprocessors : {1, 132}) {
      ScratchBounds given = bounds;
      given.multiprocessors = multiprocessors;
      if (multiprocessors > 1 || c.large_tiles) run_close([&] { run_sm90_float_wgmma(problem, given); });
    }
  }
  EXPECT_EQ(cuda_host::live_allocations(), allocated);
}

// Every shape of the acceptance list, each with one choice of everything else.
TEST(LinearOnTheMachine, EqualsTheReference) {
  constexpr std::int64_t kM[] = {0, 1, 2, 7, 16, 17, 65}, kN[] = {1, 3, 8, 9, 63, 65};
  constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
  constexpr ComputeMode kComputes[] = {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym,
                                       ComputeMode::int16};
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const FusedActivation activations[] = {{ActivationKind::none, 0, 0},
                                         {ActivationKind::clamp, 0.0f, kInfinity},
                                         {ActivationKind::clamp, -0.5f, 6.0f},
                                         {ActivationKind::silu, 0, 0},
                                         {ActivationKind::gelu, 0, 0}};
  constexpr int kDepths = 7, kBlockSizes = 6;
  Random random(7);
  unsigned cases = 0;
  for (const std::int64_t m : kM)
    for (const std::int64_t n : kN)
      for (int i = 0; i < kDepths * kBlockSizes; ++i) {
        Case c{};
        c.m = m;
        c.n = n;
        c.seed = ++cases;
        const std::int64_t block_sizes[] = {16, 32, 48, 64, 128, 100}, g = block_sizes[i / kDepths];
        const std::int64_t depths[kDepths] = {1, 31, 33, g - 1, g, g + 1, 300};
        c.k = depths[i % kDepths];
        c.block_size = i / kDepths == kBlockSizes - 1 ? c.k : g;
        c.bits = random.below(2) ? 4 : 8;
        c.scheme = random.below(2) ? Scheme::symmetric : Scheme::asymmetric;
        c.compute = kComputes[random.below(4)];
        c.x_dtype = kDTypes[random.below(3)];
        c.y_dtype = kDTypes[random.below(3)];
        c.bias_dtype = kDTypes[random.below(3)];
        c.bias = random.below(4) != 0;
        c.activation = activations[random.below(5)];
        c.x_layout = kLayouts[random.below(4)];
        c.y_layout = kLayouts[random.below(4)];
        c.special = random.below(5) == 0;
        c.large_tiles = cases % 8 == 0;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

// Every combination of mode, bits and scheme, fp32 in and out.
TEST(LinearOnTheMachine, EveryFormatAndMode) {
  for (const ComputeMode compute :
       {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16})
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
        for (const std::int64_t m : {3, 20}) {
          Case c{m, 21, 75, 32};
          c.bits = bits;
          c.scheme = scheme;
          c.compute = compute;
          c.seed = static_cast<unsigned>(1000 + m);
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
}

// Scratch memory so small that rows and blocks go through it a few at a time.
TEST(LinearOnTheMachine, ManyPasses) {
  ScratchBounds few_rows, few_blocks, few_of_both;
  few_rows.products = 24 * 4;
  few_rows.codes = 5 * 112;
  few_rows.rows = 6;
  few_rows.fewest_rows = 1;
  few_blocks.unpacked_bytes = 2 * 16 * 32;
  few_of_both = few_rows;
  few_of_both.unpacked_bytes = 3 * 32 * 16;
  for (const ScratchBounds& bounds : {few_rows, few_blocks, few_of_both})
    for (const ComputeMode compute :
         {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16})
      for (const std::int64_t m : {1, 4, 23}) {
        Case c{m, 21, 100, 16};
        c.scheme = compute == ComputeMode::int8 && m > 1 ? Scheme::symmetric : Scheme::asymmetric;
        c.compute = compute;
        c.x_layout = c.y_layout = Layout::broken;
        c.seed = static_cast<unsigned>(2000 + m);
        ASSERT_NO_FATAL_FAILURE(check(c, bounds));
      }
}

TEST(LinearOnTheMachine, NoFeatures) {
  for (const ComputeMode compute :
       {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16})
    for (const bool bias : {false, true}) {
      Case c{5, 9, 0, 32};
      c.scheme = Scheme::asymmetric;
      c.compute = compute;
      c.bias = bias;
      c.activation = {ActivationKind::clamp, 0.0f, 0.25f};
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

TEST(LinearOnTheMachine, OddAndSingleElementBlocks) {
  for (const std::int64_t block_size : {1, 5, 7, 20}) {
    Case c{4, 18, 23, block_size};
    c.scheme = Scheme::asymmetric;
    for (const ComputeMode compute :
         {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16}) {
      c.compute = compute;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

// Every instance of the fused kernel: both tile sizes, blocks that a stage holds and others, both kinds of offsets,
// tails everywhere.
TEST(LinearOnTheMachine, Fused) {
  unsigned cases = 0;
  for (const std::int64_t block_size : {32, 64, 128, 96})
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
        for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::int8_asym}) {
          Case c{37 + 100 * (cases % 2), 41 + 120 * (cases / 2 % 2), 2 * block_size + 61, block_size};
          c.bits = bits;
          c.scheme = scheme;
          c.compute = compute;
          c.large_tiles = true;
          if (cases % 2) c.k = 3 * block_size + 16, c.x_layout = c.y_layout = Layout::aligned;
          c.seed = 4000 + ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
}

// Rounds, segments and tails of K, each number of rows and both kinds of offsets.
TEST(LinearOnTheMachine, FewRows) {
  struct Depth {
    std::int64_t k, block_size;
  };
  unsigned cases = 0;
  for (const Depth depth : {Depth{2600, 32}, Depth{1100, 64}, Depth{2100, 128}, Depth{1300, 96}, Depth{3000, 704},
                            Depth{700, 700}, Depth{40, 64}})
    for (const std::int64_t m : {1, 3, 8, 13, 32})
      for (const int bits : {4, 8}) {
        if (m > 8 && depth.k > 1200) continue;
        Case c{m, 41, depth.k, depth.block_size};
        c.bits = bits;
        c.seed = 3000 + cases;
        c.scheme = cases % 2 ? Scheme::asymmetric : Scheme::symmetric;
        for (const ComputeMode compute :
             {ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::floating, ComputeMode::floating}) {
          c.compute = compute;
          ASSERT_NO_FATAL_FAILURE(check(c));
          c.scheme = c.scheme == Scheme::symmetric ? Scheme::asymmetric : Scheme::symmetric;
        }
        ++cases;
      }
}

// gemv's short way: one round of the warps and several, short last blocks, one block per row, every type of x.
TEST(LinearOnTheMachine, FewRowsInOneLaunch) {
  constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
  unsigned cases = 0;
  for (const std::int64_t block_size : {32, 64, 128})
    for (const int bits : {4, 8})
      for (const std::int64_t m : {1, 3, 8})
        for (const std::int64_t k : {std::int64_t{4264}, block_size - 8}) {
          if (m == 8 && k > 1000) continue;
          Case c{m, 41, k, block_size};
          c.bits = bits;
          c.x_dtype = c.y_dtype = kDTypes[cases % 3];
          c.special = cases % 4 == 0;
          c.seed = 5000 + ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
  for (const int bits : {4, 8})
    for (const std::int64_t m : {1, 3, 8})
      for (const std::int64_t k : {8, 136, 264, 4264, 9000}) {
        if (m > 1 && k > 4264) continue;
        Case c{m, 41, k, k};
        c.bits = bits;
        c.x_dtype = c.y_dtype = kDTypes[cases % 3];
        c.special = cases % 4 == 0;
        c.x_layout = cases % 5 == 0 ? Layout::padded : Layout::contiguous;
        c.seed = 5000 + ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

// Every instance of the float kernel on tensor cores: numbers of rows for each size of tiles, blocks of one chunk, of
// whole stages and of neither, tails everywhere.
TEST(LinearOnTheMachine, FloatOnTensorCores) {
  unsigned cases = 0;
  for (const std::int64_t block_size : {32, 64, 96, 128})
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
        for (const DType dtype : {DType::f16, DType::bf16, DType::f32})
          for (const std::int64_t m : {5, 19, 37, 131}) {
            if (m == 131 && block_size > 64) continue;
            Case c{m, 41 + 96 * (cases % 2), 2 * block_size + 56 + 5 * (cases / 2 % 2), block_size};
            c.bits = bits;
            c.scheme = scheme;
            c.compute = ComputeMode::floating;
            c.x_dtype = dtype;
            c.y_dtype = cases % 3 ? dtype : DType::f32;
            c.large_tiles = m > 32;
            c.special = cases % 5 == 0;
            c.x_layout = cases % 7 ? Layout::contiguous : Layout::padded;
            c.seed = 5000 + ++cases;
            ASSERT_NO_FATAL_FAILURE(check(c));
          }
}

// Every instance of the integer kernel for some rows: each size of tiles, rings that turn, a short last block, every
// type of x and y, no features, several passes.
TEST(LinearOnTheMachine, SomeRows) {
  constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
  struct Shape {
    std::int64_t m, n, k;
  };
  constexpr Shape kShapes[] = {{5, 41, 4264},   {13, 20, 4700}, {30, 35, 2100}, {50, 70, 1200},
                               {70, 130, 1000}, {9, 16, 40},    {33, 17, 24}};
  constexpr std::int64_t kWholeRow = 8192;
  unsigned cases = 0;
  for (const std::int64_t block_size : {std::int64_t{32}, std::int64_t{64}, std::int64_t{128}, kWholeRow})
    for (const int bits : {4, 8})
      for (const Shape& shape : kShapes) {
        // The two longest rows, and the two with most results, in turn.
        const std::int64_t place = &shape - kShapes, turn = (block_size / 32 + bits / 4) % 2;
        if (place == turn || place == 3 + turn) continue;
        Case c{shape.m, shape.n, shape.k, block_size};
        c.bits = bits;
        c.x_dtype = kDTypes[cases % 3];
        c.y_dtype = kDTypes[cases / 2 % 3];
        c.bias = cases % 2;
        if (cases % 5 == 0) c.activation = {ActivationKind::clamp, -0.5f, 6.0f};
        if (cases % 5 == 1) c.activation = {ActivationKind::silu, 0, 0};
        c.x_layout = cases % 4 == 3 ? Layout::padded : Layout::aligned;
        c.y_layout = kLayouts[cases % 4];
        c.special = cases % 6 == 5;
        c.every_tile = true;
        c.seed = 6000 + ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
  Case c{9, 21, 0, 32};
  c.every_tile = true;
  ASSERT_NO_FATAL_FAILURE(check(c));
  ScratchBounds few_rows;
  few_rows.rows = 6;
  few_rows.fewest_rows = 1;
  c.m = 23, c.k = 100;
  for (const std::int64_t block_size : {std::int64_t{32}, kWholeRow}) {
    c.block_size = block_size;
    ASSERT_NO_FATAL_FAILURE(check(c, few_rows));
  }
}

// Every instance of the kernel of warpgroups: each height of tiles, clusters of one and two, blocks of several stages,
// several blocks in a stage, and no more of them than there are.
TEST(LinearOnTheMachine, Warpgroups) {
  struct Shape {
    std::int64_t m, n, k, block_size;
  };
  constexpr Shape kShapes[] = {{130, 200, 160, 32},  {70, 140, 320, 64},  {150, 40, 300, 128},
                               {260, 130, 400, 256}, {33, 300, 200, 200}, {40, 270, 48, 64},
                               {129, 129, 33, 33},   {40, 30, 784, 384},  {300, 150, 700, 700}};
  unsigned cases = 0;
  for (const Shape& shape : kShapes)
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric}) {
        Case c{shape.m, shape.n, shape.k, shape.block_size};
        c.bits = bits;
        c.scheme = scheme;
        c.compute = cases % 3 ? ComputeMode::int8 : ComputeMode::int8_asym;
        constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
        c.x_dtype = kDTypes[cases / 2 % 3];
        c.y_dtype = kDTypes[cases % 3];
        c.bias = cases % 2;
        if (cases % 5 == 0) c.activation = {ActivationKind::clamp, -0.5f, 6.0f};
        if (cases % 5 == 1) c.activation = {ActivationKind::silu, 0, 0};
        c.y_layout = cases % 4 == 3 ? Layout::transposed : Layout::aligned;
        c.x_layout = cases % 7 == 3 ? Layout::padded : Layout::aligned;
        c.special = cases % 6 == 5;
        c.large_tiles = true;
        c.seed = 5000 + ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

// Every instance of the float kernel of warpgroups: each height of tiles, blocks of one promotion and of several, rings
// that turn, thread blocks that share the k of a tile, rows that are gathered first, sums that are not finite.
TEST(LinearOnTheMachine, FloatOnWarpgroups) {
  struct Shape {
    std::int64_t m, n, k, block_size;
    bool large;
  };
  constexpr Shape kShapes[] = {{200, 130, 300, 128, true}, {200, 40, 200, 64, true},    {100, 41, 260, 256, true},
                               {100, 30, 200, 32, true},   {40, 140, 2100, 128, false}, {50, 20, 1990, 64, false},
                               {36, 10, 1700, 32, false},  {33, 130, 77, 77, false}};
  unsigned cases = 0;
  for (const Shape& shape : kShapes)
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
        for (const DType dtype : {DType::f16, DType::bf16}) {
          Case c{shape.m, shape.n, shape.k, shape.block_size};
          c.bits = bits;
          c.scheme = scheme;
          c.compute = ComputeMode::floating;
          c.x_dtype = dtype;
          c.y_dtype = cases % 3 ? dtype : DType::f32;
          c.bias = cases % 2;
          if (cases % 5 == 0) c.activation = {ActivationKind::clamp, -0.5f, 6.0f};
          if (cases % 5 == 1) c.activation = {ActivationKind::gelu, 0, 0};
          c.x_layout = cases % 7 == 3 ? Layout::padded : Layout::aligned;
          c.y_layout = kLayouts[cases % 4];
          if (cases % 3 == 2) c.y_layout = Layout::aligned;
          c.special = cases % 6 == 5;
          c.large_tiles = shape.large;
          c.seed = 7000 + ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
  Case c{90, 40, 130, 64};
  c.compute = ComputeMode::floating;
  c.x_dtype = DType::bf16;
  ScratchBounds few_rows;
  few_rows.rows = 40;
  few_rows.fewest_rows = 1;
  ASSERT_NO_FATAL_FAILURE(check(c, few_rows));
}

}  // namespace
}  // namespace qcore
