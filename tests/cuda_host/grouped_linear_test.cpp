// The CUDA rows of grouped_linear on the machine against the CPU's reference: the same bits in y, NaN in the rows that
// the counts leave out, and not a byte changed around them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "device_arrays.h"
#include "linear/grouped/cuda/kernels.h"

namespace qcore {
namespace {

using Counts = std::vector<std::int64_t>;

struct Case {
  Counts counts;
  std::int64_t n, k, block_size;
  int bits = 4;
  Scheme scheme = Scheme::symmetric;
  ComputeMode compute = ComputeMode::int8;
  DType dtype = DType::f32;
  bool bias = true;
  bool wide = true;      // counts
  bool strided = false;  // every array
  ActivationKind activation = ActivationKind::none;
};

std::string describe(const Case& c) {
  std::ostringstream text;
  text << "E " << c.counts.size() << " N " << c.n << " K " << c.k << " g " << c.block_size << " bits " << c.bits
       << " scheme " << static_cast<int>(c.scheme) << " compute " << static_cast<int>(c.compute) << " dtype "
       << name(c.dtype) << " strided " << c.strided << " counts";
  for (const std::int64_t count : c.counts) text << ' ' << count;
  return text.str();
}

// A [rows, columns] array of random values; with `strided` every second column, and a gap between rows.
struct Array {
  std::vector<char> bytes;
  TensorView view;

  Array(Random& random, DType dtype, std::int64_t rows, std::int64_t columns, bool strided) {
    const std::int64_t step = strided ? 2 : 1, stride = columns * step + (strided ? 3 : 0);
    bytes.assign(static_cast<std::size_t>(std::max<std::int64_t>(1, rows * stride) * item_size(dtype)), '\x5a');
    view = TensorView(bytes.data(), dtype, {rows, columns});
    view.strides[0] = stride;
    view.strides[1] = step;
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column < columns; ++column)
        store_float(bytes.data(), dtype, row * stride + column * step, random.normal());
  }
};

struct Problem {
  const Case& c;
  Random random{17};
  std::int64_t rows;  // of x; the counts may have fewer or more
  QuantizedTensor weight;
  Array x, bias;
  std::vector<char> poison;

  Problem(const Case& given, std::int64_t rows_of_x)
      : c(given),
        rows(rows_of_x),
        weight(random_weight(random, c.n * experts(), c.k, c.block_size, c.bits, c.scheme)),
        x(random, c.dtype, rows, c.k, c.strided),
        bias(random, c.dtype, experts(), c.n, c.strided),
        poison(Array(random, c.dtype, rows, c.n, c.strided).bytes.size(), '\x5a') {}

  std::int64_t experts() const { return static_cast<std::int64_t>(c.counts.size()); }
  TensorView y_view(std::vector<char>& bytes) const {
    TensorView view(bytes.data(), c.dtype, {rows, c.n});
    view.strides[1] = c.strided ? 2 : 1;
    view.strides[0] = c.n * view.strides[1] + (c.strided ? 3 : 0);
    return view;
  }

  // What the CPU gives for counts that have all rows.
  std::vector<char> expected(const Counts& counts) const {
    std::vector<char> y = poison;
    LinearOptions options;
    options.compute = c.compute;
    options.activation.kind = c.activation;
    ForceKernel reference("grouped_linear", "reference");
    grouped_linear(x.view, weight, TensorView(counts.data(), DType::i64, {experts()}), c.bias ? &bias.view : nullptr,
                   y_view(y), options);
    return y;
  }

  template <class Kernel>
  std::vector<char> got(Kernel kernel, const char* (*unsupported)(const GroupedLinearProblem&),
                        const ScratchBounds& bounds = {}) const {
    const auto moved = on_device(weight.packed());
    const DeviceArray<char> device_x(x.bytes), device_bias(bias.bytes), device_y(poison);
    // Counts of either width, two apart.
    Counts wide(2 * c.counts.size(), -7);
    for (std::size_t e = 0; e < c.counts.size(); ++e) wide[2 * e] = c.counts[e];
    const std::vector<std::int32_t> narrow(wide.begin(), wide.end());
    const DeviceArray<std::int64_t> device_wide(wide);
    const DeviceArray<std::int32_t> device_narrow(narrow);
    std::vector<char> shape_only = poison;

    GroupedLinearProblem problem;
    problem.m = rows;
    problem.x = row_view(x.view);
    problem.x.data = device_x.get();
    problem.y = row_view(y_view(shape_only));
    problem.y.data = device_y.get();
    problem.weight = moved.get();
    if (c.bias) {
      problem.bias = bias.view;
      problem.bias.data = device_bias.get();
    }
    problem.compute = c.compute;
    problem.activation.kind = c.activation;
    problem.device = kCuda;
    problem.experts = experts();
    problem.row_counts = c.wide ? TensorView(device_wide.get(), DType::i64, {experts()})
                                : TensorView(device_narrow.get(), DType::i32, {experts()});
    problem.row_counts.strides[0] = 2;
    EXPECT_EQ(unsupported(problem), nullptr) << describe(c);
    kernel(problem, bounds);
    return device_y.host();
  }
};

void expect_same(const Case& c, const std::vector<char>& expected, const std::vector<char>& got, const char* kernel) {
  const std::int64_t count = static_cast<std::int64_t>(expected.size()) / item_size(c.dtype);
  for (std::int64_t i = 0; expected != got && i < count; ++i) {
    const float a = load_float(expected.data(), c.dtype, i), b = load_float(got.data(), c.dtype, i);
    if (std::isnan(a) && std::isnan(b)) continue;
    ASSERT_EQ(numerics::float_bits(a), numerics::float_bits(b)) << kernel << ", element " << i << ", " << describe(c);
  }
}

bool takes_mma(const Case& c) {
  return (c.compute == ComputeMode::int8 || c.compute == ComputeMode::int8_asym) && c.n % 16 == 0 &&
         (c.block_size % 32 == 0 || c.k <= c.block_size);
}

bool takes_wgmma(const Case& c) {
  return takes_mma(c) && (c.k <= c.block_size || c.block_size <= 64 || c.block_size % 128 == 0);
}

bool takes_gemv(const Case& c, std::int64_t rows) {
  return takes_mma(c) && rows <= 8 && c.compute == ComputeMode::int8 && c.scheme == Scheme::symmetric && !c.strided &&
         c.k % 8 == 0 && c.k * item_size(c.dtype) % 16 == 0;
}

// Every height of tiles, and the one that is chosen.
void check_hopper(const Case& c, const Problem& problem, const std::vector<char>& expected, ScratchBounds bounds = {}) {
  if (takes_gemv(c, problem.rows))
    expect_same(c, expected, problem.got(run_grouped_gemv, grouped_gemv_unsupported_reason, bounds), "gemv");
  if (!takes_wgmma(c)) return;
  const bool tall = c.k <= c.block_size || (c.block_size > 64 && c.block_size <= 128);
  for (bounds.tile = 5; bounds.tile < 8 + tall; ++bounds.tile)
    expect_same(c, expected,
                problem.got(run_grouped_sm90_int8_wgmma, grouped_sm90_int8_wgmma_unsupported_reason, bounds), "wgmma");
  bounds.tile = -1;
  expect_same(c, expected, problem.got(run_grouped_sm90_int8_wgmma, grouped_sm90_int8_wgmma_unsupported_reason, bounds),
              "wgmma");
}

void check(const Case& c, const ScratchBounds& bounds = {}) {
  const int allocated = cuda_host::live_allocations();
  const Problem problem(c, std::accumulate(c.counts.begin(), c.counts.end(), std::int64_t{0}));
  const std::vector<char> expected = problem.expected(c.counts);
  expect_same(c, expected, problem.got(run_grouped_simt, grouped_simt_unsupported_reason, bounds), "simt");
  if (takes_mma(c))
    expect_same(c, expected, problem.got(run_grouped_int8_mma, grouped_int8_mma_unsupported_reason, bounds), "mma");
  ASSERT_NO_FATAL_FAILURE(check_hopper(c, problem, expected, bounds));
  EXPECT_EQ(cuda_host::live_allocations(), allocated);
}

constexpr ComputeMode kComputes[] = {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym,
                                     ComputeMode::int16};

TEST(GroupedLinearOnTheMachine, EqualsTheReference) {
  const Counts some[] = {{3, 0, 1, 5}, {0, 0, 70, 0, 2}, {9}, {0, 0}, {1, 1, 1, 1, 1, 1, 1}, {130, 1, 65}};
  int number = 0;
  for (const Counts& counts : some)
    for (const ComputeMode compute : kComputes)
      for (const int bits : {4, 8}) {
        ++number;
        Case c{counts, number % 3 == 0 ? 21 : 80, number % 2 ? 96 : 75, number % 2 ? 32 : 64, bits};
        c.compute = compute;
        c.scheme = number / 2 % 2 ? Scheme::symmetric : Scheme::asymmetric;
        c.dtype = number % 4 == 0 ? DType::bf16 : number % 4 == 1 ? DType::f16 : DType::f32;
        c.bias = number % 5 != 0;
        c.wide = number % 2 == 0;
        c.strided = number % 3 == 1;
        if (number % 4 == 2) c.activation = number % 8 == 2 ? ActivationKind::gelu : ActivationKind::tanh;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

TEST(GroupedLinearOnTheMachine, MoreExpertsThanAWarpHasLanes) {
  Counts counts(75, 0);
  for (const int e : {0, 1, 31, 32, 40, 63, 64, 74}) counts[static_cast<std::size_t>(e)] = 1 + e % 3;
  for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::floating}) {
    Case c{counts, 16, 64, 32};
    c.compute = compute;
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

// Experts that begin and end within a panel of the packed weight, and outputs of several columns of tiles.
TEST(GroupedLinearOnTheMachine, AnyNumberOfOutputs) {
  for (const std::int64_t n : {1, 7, 16, 33, 64, 65, 130})
    for (const ComputeMode compute : {ComputeMode::int8_asym, ComputeMode::floating}) {
      Case c{{2, 0, 3}, n, 40, 32, 8};
      c.compute = compute;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

// Experts whose last tile of columns holds columns of the next one, rows of one block, and more tiles than run at once.
TEST(GroupedLinearOnTheMachine, TilesOfWarpgroups) {
  for (const int bits : {4, 8})
    for (const std::int64_t block_size : {32, 64, 128, 512}) {
      Case c{{40, 0, 3, 1}, 144, block_size == 512 ? 200 : 320, block_size, bits};
      c.dtype = DType::f16;
      c.compute = bits == 8 ? ComputeMode::int8 : ComputeMode::int8_asym;
      c.scheme = block_size == 64 ? Scheme::asymmetric : Scheme::symmetric;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

// One to eight rows, which every thread block quantizes itself; an odd number of panels.
TEST(GroupedLinearOnTheMachine, FewRows) {
  for (const int bits : {4, 8})
    for (const std::int64_t block_size : {32, 64, 128, 512}) {
      Case c{{0, 3, 0, 1, 4}, 48, block_size == 512 ? 200 : 320, block_size, bits};
      c.dtype = bits == 8 ? DType::bf16 : DType::f32;
      c.bias = block_size != 64;
      ASSERT_NO_FATAL_FAILURE(check(c));
      c.counts = {0, 0, 1};
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

// Scratch memory so small that experts are cut by passes.
TEST(GroupedLinearOnTheMachine, ManyPasses) {
  ScratchBounds bounds;
  bounds.rows = bounds.fewest_rows = 7;
  for (const ComputeMode compute : kComputes) {
    Case c{{3, 12, 0, 1, 20}, 32, 64, 32};
    c.compute = compute;
    ASSERT_NO_FATAL_FAILURE(check(c, bounds));
  }
}

// The counts that the kernels see, and those that mean the same.
struct Wrong {
  Counts given, meant;
  std::int64_t rows = 90;
};

TEST(GroupedLinearOnTheMachine, CountsThatDoNotSumToTheRows) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  const Wrong wrong[] = {{{3, 0, 4}, {3, 0, 4}},        {{0, 0, 0}, {0, 0, 0}},    {{-5, 8, -1}, {0, 8, 0}},
                         {{20, 80, 3}, {20, 70, 0}},    {{91, 1, 1}, {90, 0, 0}},  {{1, kMost, kMost}, {1, 89, 0}},
                         {{-kMost, 0, 90}, {0, 0, 90}}, {{1, 0, 2}, {1, 0, 2}, 8}, {{-kMost, 3, 20}, {0, 3, 5}, 8}};
  for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::floating})
    for (const auto& [given, meant, rows] : wrong)
      for (const std::int64_t n : {48, 21}) {
        Case c{given, n, 64, 32};
        c.compute = compute;
        c.strided = rows > 8;
        const Problem problem(c, rows);
        // The rest go to the last expert, so that the CPU takes the counts, and then become NaN.
        Counts all = meant;
        const std::int64_t sum = std::accumulate(meant.begin(), meant.end(), std::int64_t{0});
        all.back() += rows - sum;
        std::vector<char> expected = problem.expected(all);
        const TensorView y = problem.y_view(expected);
        for (std::int64_t row = sum; row < rows; ++row)
          for (std::int64_t column = 0; column < n; ++column)
            store_float(expected.data(), c.dtype, row * y.strides[0] + column * y.strides[1],
                        numerics::nan_block().scale);
        expect_same(c, expected, problem.got(run_grouped_simt, grouped_simt_unsupported_reason), "simt");
        if (takes_mma(c))
          expect_same(c, expected, problem.got(run_grouped_int8_mma, grouped_int8_mma_unsupported_reason), "mma");
        ASSERT_NO_FATAL_FAILURE(check_hopper(c, problem, expected));
      }
}

TEST(GroupedLinearOnTheMachine, WhatKernelsDoNotTake) {
  Random random(1);
  const auto reasons = [&](std::int64_t experts, std::int64_t n, std::int64_t block_size, ComputeMode compute) {
    const auto moved = on_device(random_weight(random, n * experts, 64, block_size, 4, Scheme::symmetric).packed());
    GroupedLinearProblem problem;
    problem.m = 1;
    problem.weight = moved.get();
    problem.compute = compute;
    problem.device = kCuda;
    problem.experts = experts;
    const auto text = [](const char* reason) { return std::string(reason ? reason : "takes it"); };
    return text(grouped_sm90_int8_wgmma_unsupported_reason(problem)) + "; " +
           text(grouped_int8_mma_unsupported_reason(problem)) + "; " + text(grouped_simt_unsupported_reason(problem));
  };
  EXPECT_EQ(reasons(2, 16, 32, ComputeMode::int8), "takes it; takes it; takes it");
  EXPECT_EQ(reasons(2, 8, 32, ComputeMode::int8),
            "it takes N that are multiples of 16; it takes N that are multiples of 16; takes it");
  EXPECT_EQ(
      reasons(2, 16, 16, ComputeMode::int8),
      "it takes block sizes 32, 64 and multiples of 128; it takes block sizes that are multiples of 32; takes it");
  EXPECT_EQ(reasons(2, 16, 32, ComputeMode::int16),
            "it computes int8 and int8_asym only; it computes int8 and int8_asym only; takes it");
  EXPECT_EQ(reasons(20000, 1, 32, ComputeMode::int16),
            "it computes int8 and int8_asym only; it computes int8 and int8_asym only; it takes up to 16384 experts");
  EXPECT_EQ(reasons(1024, 16, 32, ComputeMode::int8), "it takes up to 1023 experts; takes it; takes it");
}

}  // namespace
}  // namespace qcore
