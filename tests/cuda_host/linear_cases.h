#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "device_arrays.h"
#include "gemm/cuda/sm80_int8_mma16/arguments.cuh"
#include "gemm/cuda/sm90_int8_mma/arguments.cuh"
#include "linear/cuda/kernels.h"
#include "numerics/block_scale.h"
#include "runtime/memory.h"

// A product of linear on the machine against the reference kernel of libqcore, by every kernel that takes it.
namespace qcore {

enum class Layout { contiguous, padded, transposed, broken, aligned, overlapping };
constexpr Layout kLayouts[] = {Layout::contiguous, Layout::padded, Layout::transposed, Layout::broken};

// A [rows, columns] array in a larger buffer.
struct Placement {
  std::int64_t first = 0, size = 0;  // of the buffer, in elements
  RowView rows;
  TensorView view;
};

inline Placement place(Layout layout, DType dtype, std::int64_t rows, std::int64_t columns) {
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
  // One leading axis: rows at multiples of 16 elements, or so close that rows of more than 8 columns share memory.
  const bool one_axis = layout == Layout::aligned || layout == Layout::overlapping;
  if (one_axis) at.first = 16, row_stride = layout == Layout::aligned ? round_up(columns, 16) : 8;
  at.size = at.first + rows * std::abs(row_stride) + columns * column_stride + 16;

  at.rows.dtype = at.view.dtype = dtype;
  at.rows.column_stride = column_stride;
  at.rows.leading = 2;
  at.view.rank = 3;
  if (one_axis) outer_stride = inner * row_stride;
  const std::int64_t shape[] = {outer, inner, columns}, strides[] = {outer_stride, row_stride, column_stride};
  for (int axis = 0; axis < 3; ++axis) {
    at.view.shape[axis] = shape[axis];
    at.view.strides[axis] = strides[axis];
    if (axis < 2) at.rows.shape[axis] = shape[axis];
    if (axis < 2) at.rows.strides[axis] = strides[axis];
  }
  if (one_axis) at.rows.leading = 1, at.rows.shape[0] = rows, at.rows.strides[0] = row_stride;
  return at;
}

inline std::vector<char> filled(const Placement& at, const std::vector<float>& values, std::int64_t columns) {
  std::vector<char> buffer(static_cast<std::size_t>(at.size * item_size(at.view.dtype)), '\xcd');
  if (columns == 0) return buffer;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i)
    store_float(buffer.data(), at.view.dtype,
                at.first + at.rows.row_offset(i / columns) + i % columns * at.rows.column_stride, values[i]);
  return buffer;
}

inline std::vector<float> seen_values(const std::vector<char>& buffer, const Placement& at, std::int64_t rows,
                                      std::int64_t columns) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows * columns; ++i)
    values.push_back(load_float(buffer.data(), at.view.dtype,
                                at.first + at.rows.row_offset(i / columns) + i % columns * at.rows.column_stride));
  return values;
}

// Where the codes of x come from: what ActivationScales has, and codes with a scale for each block or for each row.
enum class Scales { per_block, per_row, fixed, codes, row_codes };

struct Case {
  std::int64_t m, n, k, block_size;
  int bits = 4;
  Scheme scheme = Scheme::symmetric;
  ComputeMode compute = ComputeMode::int8;
  DType x_dtype = DType::f32, y_dtype = DType::f32, bias_dtype = DType::f32;
  bool bias = true;
  FusedActivation activation{};
  Layout x_layout = Layout::contiguous, y_layout = Layout::contiguous;
  bool zero_points = false;  // of a weight of 4 bits with offsets
  bool special = false;      // x holds a NaN and an Inf
  bool large_tiles = false;  // of the kernels that have them, too
  bool every_tile = false;   // of sm80_int8_mma16 and sm90_int8_mma
  Scales scales = Scales::per_block;
  unsigned seed = 0;

  bool codes() const { return scales == Scales::codes || scales == Scales::row_codes; }
};

inline std::string describe(const Case& c) {
  std::ostringstream text;
  text << "M " << c.m << " N " << c.n << " K " << c.k << " g " << c.block_size << " bits " << c.bits << " scheme "
       << static_cast<int>(c.scheme) << (c.zero_points ? " of zero points" : "") << " compute "
       << static_cast<int>(c.compute) << " x " << name(c.x_dtype) << " y " << name(c.y_dtype) << " bias "
       << (c.bias ? name(c.bias_dtype) : "none") << " activation " << static_cast<int>(c.activation.kind) << " layouts "
       << static_cast<int>(c.x_layout) << " " << static_cast<int>(c.y_layout) << " special " << c.special << " scales "
       << static_cast<int>(c.scales) << " seed " << c.seed;
  return text.str();
}

inline void expect_same(const std::vector<char>& expected, const std::vector<char>& given, DType dtype, const Case& c) {
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
inline std::vector<float> tolerances(const Case& c, const std::vector<float>& x, const PackedWeight& w) {
  std::vector<double> weights(static_cast<std::size_t>(c.n * c.k));  // decoded once, not for each m
  for (std::int64_t i = 0; i < c.n * c.k; ++i) {
    const std::int64_t n = i / c.k, k = i % c.k, p = k / c.block_size;
    weights[i] = double{numerics::decode(w.code(n, k), w.scale(n, p), w.offset(n, p))};
  }
  std::vector<float> bounds;
  for (std::int64_t m = 0; m < c.m; ++m)
    for (std::int64_t n = 0; n < c.n; ++n) {
      const float* const row = x.data() + m * c.k;
      const double* const column = weights.data() + n * c.k;
      double magnitude = 0;
      for (std::int64_t k = 0; k < c.k; ++k) magnitude += std::fabs(double{row[k]} * column[k]);
      const double roundings = static_cast<double>(w.layout.blocks() + std::min(c.block_size, c.k));
      bounds.push_back(static_cast<float>(2 * 4 * roundings * 0x1p-24 * magnitude * 1.2));
    }
  return bounds;
}

// Moves every y that is close enough to where it is expected.
inline void settle(const Case& c, const Placement& at, const std::vector<float>& tolerance,
                   const std::vector<char>& expected, std::vector<char>& given) {
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

inline ScratchBounds with_tiles(ScratchBounds bounds, std::int64_t enough_tiles) {
  bounds.enough_tiles = enough_tiles;
  return bounds;
}

// x as codes, in a buffer where they are placed like any x, and with scales that lie apart.
struct Codes {
  Placement at;
  std::vector<char> buffer;
  std::vector<float> scales, offsets;
  QuantizedActivations view;
  std::int64_t columns;  // of the scales

  Codes(const Case& c, const std::vector<float>& x) {
    const bool words = c.compute == ComputeMode::int16, row = c.scales == Scales::row_codes;
    at = place(c.x_layout, words ? DType::i16 : DType::i8, c.m, c.k);
    buffer.resize(static_cast<std::size_t>(at.size * item_size(at.view.dtype)));
    const std::int64_t block = row ? std::max<std::int64_t>(c.k, 1) : c.block_size;
    columns = ceil_div(c.k, block);
    scales.resize(static_cast<std::size_t>(2 * c.m * columns));
    offsets.resize(c.compute == ComputeMode::int8_asym ? scales.size() : 0);
    view = {at.view, parameters(scales), offsets.empty() ? TensorView() : parameters(offsets), block, c.compute};
    view.codes.data = buffer.data() + at.first * item_size(at.view.dtype);
    TensorView from = at.view;
    from.dtype = DType::f32;
    from.data = const_cast<float*>(x.data());
    std::int64_t stride = 1;
    for (int axis = 2; axis >= 0; stride *= from.shape[axis--]) from.strides[axis] = stride;
    quantize_activations(from, view);
  }

  TensorView parameters(std::vector<float>& values) const {
    TensorView array = at.view;
    array.dtype = DType::f32;
    array.data = values.data();
    const std::int64_t inner = at.view.shape[1];
    array.shape[2] = columns;
    array.strides[2] = 2, array.strides[1] = 2 * columns, array.strides[0] = 2 * columns * inner;
    return array;
  }
  RowView rows(const TensorView& of, const float* data) const {
    RowView rows = row_view(of);
    rows.data = data;
    return rows;
  }
};

inline void check(const Case& c, const ScratchBounds& bounds = {}) {
  Random random(c.seed);
  const QuantizedTensor weight = c.zero_points ? weight_with_zero_points(random, c.n, c.k, c.block_size)
                                               : random_weight(random, c.n, c.k, c.block_size, c.bits, c.scheme);
  std::vector<float> x_values = block_values(random, c.m, c.k, c.block_size);
  if (c.special && !x_values.empty()) {
    x_values[random.below(static_cast<int>(x_values.size()))] = std::numeric_limits<float>::quiet_NaN();
    x_values[random.below(static_cast<int>(x_values.size()))] = std::numeric_limits<float>::infinity();
  }
  constexpr float kFixedScale = 0.03f;
  std::optional<Codes> codes;
  if (c.codes()) codes.emplace(c, x_values);
  const Placement x_at = codes ? codes->at : place(c.x_layout, c.x_dtype, c.m, c.k),
                  y_at = place(c.y_layout, c.y_dtype, c.m, c.n);
  const Placement bias_at = place(Layout::transposed, c.bias_dtype, 1, c.n);
  std::vector<float> bias_values(static_cast<std::size_t>(c.n));
  for (float& value : bias_values) value = random.normal();
  const std::vector<char> x = codes ? codes->buffer : filled(x_at, x_values, c.k),
                          bias = filled(bias_at, bias_values, c.n), poison = filled(y_at, {}, c.n);

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
    options.compute = c.scales == Scales::per_row ? ComputeMode::int8_token : c.compute;
    options.x_scale = c.scales == Scales::fixed ? kFixedScale : 0.0f;
    options.activation = c.activation;
    const TensorView* const given_bias = c.bias ? &bias_view : nullptr;
    if (codes)
      linear(codes->view, weight, given_bias, view(y_at, expected), options);
    else
      linear(view(x_at, x), weight, given_bias, view(y_at, expected), options);
  }

  const DeviceArray<char> device_x(x), device_bias(bias);
  const auto moved = on_device(weight.packed());
  if (c.zero_points) ASSERT_TRUE(moved->has_zero_points) << describe(c);
  LinearProblem problem;
  problem.m = c.m;
  problem.x = x_at.rows;
  problem.x.data = device_x.get() + x_at.first * item_size(x_at.view.dtype);
  if (c.scales == Scales::per_row) problem.scales.source = ActivationScales::Source::per_row;
  if (c.scales == Scales::fixed)
    problem.scales.source = ActivationScales::Source::fixed, problem.scales.fixed = kFixedScale;
  const DeviceArray<float> x_scales(codes ? codes->scales : std::vector<float>{}),
      x_offsets(codes ? codes->offsets : std::vector<float>{});
  if (codes) {
    problem.scales.source = ActivationScales::Source::given;
    problem.scales.scales = codes->rows(codes->view.scales, x_scales.get());
    if (codes->view.offsets.rank) problem.scales.offsets = codes->rows(codes->view.offsets, x_offsets.get());
    if (c.scales == Scales::row_codes) problem.scales.blocks_per_scale = ceil_div(c.k, c.block_size);
  }
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
    const bool blocks_of_16 = c.block_size == sm80_int8_mma16::kBlock && c.k > c.block_size;
    for (int i = 0; blocks_of_16 && c.every_tile && i < sm80_int8_mma16::kSizes; ++i) run(run_sm80_int8_mma, 0, i);
  }
  // More rows of a weight with offsets than it is chosen for are multiplied too.
  LinearProblem fewer = problem;
  if (weight.packed().has_offsets()) fewer.m = std::min<std::int64_t>(c.m, 64);
  if (!sm90_int8_mma_unsupported_reason(fewer)) {
    run(run_sm90_int8_mma);
    const bool one_block = weight.packed().layout.block_size > 128;
    const std::int64_t g = one_block ? 0 : weight.packed().layout.block_size;
    for (int i = 0; c.every_tile && i < sm90_int8_mma::kSizes; ++i)
      if (const auto size = static_cast<sm90_int8_mma::Size>(i);
          sm90_int8_mma::has_kernel(size, g, c.bits, weight.packed().has_offsets()))
        run(run_sm90_int8_mma, 0, i);
  }
  if (!sm90_int8_wgmma_unsupported_reason(problem)) {
    if (c.large_tiles) {
      run(run_sm90_int8_wgmma, 1);
      for (const std::int64_t rows : {64, 128}) run(run_sm90_int8_wgmma, ceil_div(c.n, 128) * ceil_div(c.m, rows));
    }
    run(run_sm90_int8_wgmma, 1000);
    run(run_sm90_int8_wgmma, 3, 1);  // thread blocks over which steps are spread, if there are as many tiles
  }
  ASSERT_EQ(simt_unsupported_reason(problem), nullptr);
  run(run_simt);
  if (c.compute == ComputeMode::int8 || c.compute == ComputeMode::int8_asym) {
    ASSERT_EQ(sm75_int8_sliced_unsupported_reason(problem), nullptr);
    run(run_sm75_int8_sliced);
  }
  std::vector<float> close;  // computed for the first kernel of float sums
  const auto run_close = [&](const auto& kernel) {
    const DeviceArray<char> device_y(poison);
    problem.y.data = device_y.get() + y_at.first * item_size(c.y_dtype);
    kernel();
    std::vector<char> given = device_y.host();
    if (c.compute == ComputeMode::floating) {
      if (close.empty()) close = tolerances(c, seen_values(x, x_at, c.m, c.k), weight.packed());
      settle(c, y_at, close, expected, given);
    }
    expect_same(expected, given, c.y_dtype, c);
  };
  // Float activations are gemv's on devices before 8.0 only; its code is the same on all.
  LinearProblem on_turing = problem;
  on_turing.device = kTuring;
  // On a single multiprocessor a thread block takes all columns in turn.
  ScratchBounds single = bounds;
  single.multiprocessors = 1;
  const bool turns = c.m <= 8 && c.n > 32;
  if (!sm75_gemv_unsupported_reason(on_turing)) {
    run_close([&] { run_sm75_gemv(problem, bounds); });
    if (turns) run_close([&] { run_sm75_gemv(problem, single); });
  }
  if (!sm80_float_mma_unsupported_reason(problem)) {
    if (turns) run_close([&] { run_sm80_float_mma(problem, single); });
    const auto run_with_tiles = [&](std::int64_t enough_tiles) {
      run_close([&] { run_sm80_float_mma(problem, with_tiles(bounds, enough_tiles)); });
    };
    if (c.large_tiles) run_with_tiles(1);
    // With these bounds the tiles of sizes between the largest and the smallest are just enough.
    if (c.large_tiles && c.x_dtype != DType::f32)
      for (const std::int64_t columns : {128, 64}) run_with_tiles(ceil_div(c.n, columns) * ceil_div(c.m, 64));
    run_with_tiles(1000);
  }
  if (!sm90_float_wgmma_unsupported_reason(problem)) {
    // On a single multiprocessor large tiles are the best, on many small ones. Steps are spread over as many thread
    // blocks as there are steps, or over three, which have whole tiles and one, two or three pieces each.
    ScratchBounds given = bounds;
    const auto run_planned = [&](std::int64_t multiprocessors, int spread) {
      given.multiprocessors = multiprocessors;
      given.tile = spread;
      run_close([&] { run_sm90_float_wgmma(problem, given); });
    };
    if (c.large_tiles) run_planned(1, 0);
    run_planned(132, 0);
    run_planned(c.seed % 2 ? 3 : 132, 1);
  }
  EXPECT_EQ(cuda_host::live_allocations(), allocated);
}

}  // namespace qcore
