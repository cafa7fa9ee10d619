// The CUDA rows of gru on the machine against the reference kernel: the same integers, and not a byte changed around
// them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "cuda_runtime.h"
#include "gru/cpu/gru_packed.h"
#include "gru/cuda/kernels.h"
#include "gru/dispatch.h"
#include "recurrent/cuda/fixed_codes.h"
#include "recurrent_arrays.h"

namespace qcore {
namespace {

struct Case {
  std::int64_t steps, batch;
  DType x = DType::i8, y = DType::i8, h0 = DType::i8, last = DType::i8;  // codes take those of their format
  bool has_h0 = true, has_last = true, lengths = false, gates = false, reverse = false;
  int layout = 0;
};

struct Arrays {
  Array x, h0, y, last, gates, lengths;
};

Arrays arrays_of(Random& random, const QuantizedGru& gru, const Case& c) {
  const GruParameters& p = gru.parameters();
  Arrays made;
  made.x = Array(dtype_of(c.x, p.formats.x), {c.steps, c.batch, p.input_size}, c.layout);
  made.y = Array(dtype_of(c.y, p.formats.h), {c.steps, c.batch, p.hidden_size}, c.layout);
  fill_random(random, made.x, p.formats.x);
  if (c.has_h0) {
    made.h0 = Array(dtype_of(c.h0, p.formats.h), {c.batch, p.hidden_size}, c.layout);
    fill_random(random, made.h0, p.formats.h);
  }
  if (c.has_last) made.last = Array(dtype_of(c.last, p.formats.h), {c.batch, p.hidden_size}, c.layout);
  if (c.gates) made.gates = Array(DType::i32, {c.steps, c.batch, 4 * p.hidden_size}, c.layout);
  if (c.lengths) {
    made.lengths = Array(DType::i32, {c.batch}, c.layout);
    made.lengths.fill([&](char* data, std::int64_t at) {
      reinterpret_cast<std::int32_t*>(data)[at] = between(random, 0, static_cast<int>(c.steps));
    });
  }
  return made;
}

template <class Place>
GruProblem problem_of(const QuantizedGru& gru, const Case& c, Device device, const Arrays& arrays, const Place& place) {
  GruProblem problem;
  problem.gru = &gru.storage();
  problem.steps = c.steps;
  problem.batch = c.batch;
  problem.reverse = c.reverse;
  problem.device = device;
  const auto view = [&](const Array& array) {
    TensorView made = array.view;
    made.data = array.empty() ? nullptr : place(array);
    made.device = device;
    return made;
  };
  problem.x = view(arrays.x);
  problem.y = view(arrays.y);
  problem.h0 = view(arrays.h0);
  problem.last = view(arrays.last);
  problem.gates = view(arrays.gates);
  problem.lengths = view(arrays.lengths);
  return problem;
}

// Every way to run the case against the reference.
void check(Random& random, const QuantizedGru& gru, const Case& c, const std::vector<RecurrentCudaOptions>& ways,
           const std::string& what) {
  Arrays arrays = arrays_of(random, gru, c);
  const Arrays untouched = arrays;
  run_gru_reference(problem_of(gru, c, kCpu, arrays, [](const Array& array) {
    return const_cast<char*>(array.bytes.data());  // the arrays are this function's own
  }));
  for (const RecurrentCudaOptions& way : ways) {
    std::vector<DeviceArray<char>> memory;
    memory.reserve(6);
    std::vector<const Array*> order;
    const GruProblem problem = problem_of(gru, c, kCuda, untouched, [&](const Array& array) {
      memory.emplace_back(array.bytes);
      order.push_back(&array);
      return memory.back().get();
    });
    run_gru_cuda(problem, way);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Array* all[] = {&untouched.x,    &untouched.h0,    &untouched.y,
                            &untouched.last, &untouched.gates, &untouched.lengths};
      const Array* results[] = {&arrays.x, &arrays.h0, &arrays.y, &arrays.last, &arrays.gates, &arrays.lengths};
      const char* names[] = {"x", "h0", "y", "last", "gates", "lengths"};
      for (int k = 0; k < 6; ++k)
        if (order[i] == all[k]) expect_equal(memory[i].host(), results[k]->bytes, what + name_of(way) + names[k]);
    }
  }
}

constexpr GruPipeline kPipelines[] = {GruPipeline::staged, GruPipeline::fused};

TEST(GruCuda, PresetsInBothPipelines) {
  Random random(1);
  for (const GruPipeline pipeline : kPipelines)
    for (const ShiftRounding rounding : kRoundings)
      for (const GruWidths widths :
           {GruWidths{8, 8, 8}, GruWidths{16, 16, 16}, GruWidths{8, 16, 16}, GruWidths{16, 8, 8}}) {
        const QuantizedGru gru = random_gru(random, 20, 33, widths, pipeline, rounding);
        for (const std::int64_t batch : {3, 10}) {
          Case c{4, batch};
          c.gates = true;
          check(random, gru, c, all_ways(), name_of(20, 33, c.steps, c.batch, widths));
        }
      }
}

constexpr int kSizes[] = {1, 2, 15, 16, 17, 40, 65};

Case random_case(Random& random) {
  Case c{between(random, 1, 5), random.below(4) ? between(random, 1, 5) : between(random, 9, 20)};
  const auto dtype = [&] { return random.below(2) ? DType::i8 : kFloats[random.below(3)]; };
  c.x = dtype(), c.y = dtype(), c.h0 = dtype(), c.last = dtype();
  c.has_h0 = random.below(3) > 0;
  c.has_last = random.below(3) > 0;
  c.lengths = random.below(2) > 0;
  c.gates = random.below(2) > 0;
  c.reverse = random.below(2) > 0;
  c.layout = random.below(3);
  return c;
}

TEST(GruCuda, RandomWidthsShapesAndOptions) {
  Random random(2);
  int narrow = 0;
  for (int i = 0; i < 60; ++i) {
    const GruWidths widths{between(random, 2, 16), between(random, 2, 16), between(random, 2, 16)};
    const std::int64_t inputs = kSizes[random.below(7)], h = kSizes[random.below(7)];
    const QuantizedGru gru =
        random_gru(random, inputs, h, widths, kPipelines[random.below(2)], kRoundings[random.below(2)], i % 4 == 0);
    const Case c = random_case(random);
    std::vector<RecurrentCudaOptions> ways = all_ways();
    ways[2].largest_cluster = between(random, 1, 8);
    for (RecurrentCudaOptions& way : ways)
      if (random.below(2)) way.scratch_bytes = 5000;  // many parts
    check(random, gru, c, ways, name_of(inputs, h, c.steps, c.batch, widths));
    narrow += gru.storage().packed->layer.width != LaneWidth::scalar;
  }
  EXPECT_GE(narrow, 30);
  EXPECT_LE(narrow, 55);
}

// The same numbers with linear_before_reset = 0; nothing if they are not safe there.
std::optional<QuantizedGru> reset_first(const QuantizedGru& gru) {
  GruParameters p = gru.parameters();
  p.linear_before_reset = false;
  p.formats.rrh.is_signed = true;
  p.formats.rrh.zero_point = std::min(p.formats.rrh.zero_point, p.formats.rrh.highest());
  try {
    return QuantizedGru::make(p);
  } catch (const ValueError&) {
    return std::nullopt;
  }
}

// Steps of several launches.
TEST(GruCuda, ResetBeforeTheProduct) {
  Random random(11);
  const RecurrentCudaOptions whole;
  RecurrentCudaOptions parts;
  parts.scratch_bytes = 5000;
  int made = 0;
  for (int i = 0; i < 100; ++i) {
    const GruWidths widths{between(random, 2, 16), between(random, 2, 16), between(random, 2, 16)};
    const std::int64_t inputs = kSizes[random.below(7)], h = kSizes[random.below(7)];
    const std::optional<QuantizedGru> gru =
        reset_first(random_gru(random, inputs, h, widths, kPipelines[i % 2], kRoundings[i / 2 % 2], i % 8 > 5));
    if (!gru) continue;
    ++made;
    const Case c = random_case(random);
    check(random, *gru, c, {whole, parts}, name_of(inputs, h, c.steps, c.batch, widths));
  }
  EXPECT_GE(made, 40);
  // More rows than a block of the products has, and more channels than one of the cell has.
  for (const GruWidths widths : {GruWidths{8, 8, 8}, GruWidths{16, 16, 16}}) {
    std::optional<QuantizedGru> gru;
    while (!gru) gru = reset_first(random_gru(random, 3, 70, widths, kPipelines[0], ShiftRounding::half_away));
    Case c{3, 140};
    c.lengths = c.gates = true;
    check(random, *gru, c, {whole}, name_of(3, 70, c.steps, c.batch, widths));
  }
}

// A run of one step is one launch, which takes codes and floats as they lie.
TEST(GruCuda, OneStep) {
  Random random(12);
  for (const GruPipeline pipeline : kPipelines)
    for (const GruWidths widths :
         {GruWidths{8, 8, 8}, GruWidths{16, 16, 16}, GruWidths{8, 16, 16}, GruWidths{16, 8, 8}})
      for (const std::int64_t batch : {3, 21})
        for (const std::int64_t h : {9, 100}) {
          const QuantizedGru gru = random_gru(random, 70, h, widths, pipeline, ShiftRounding::half_away);
          Case c{1, batch};
          c.lengths = c.gates = true;
          c.x = batch == 3 ? DType::f16 : DType::i8;
          c.y = batch == 3 ? DType::f32 : DType::i8;
          c.reverse = h == 9;
          c.layout = h == 9 ? 2 : 1;
          check(random, gru, c, {RecurrentCudaOptions{}}, name_of(70, h, 1, batch, widths));
        }
}

// Rows for all of which W x is one launch of larger tiles; rows of many clusters.
TEST(GruCuda, ManyRows) {
  Random random(3);
  for (const GruWidths widths : {GruWidths{8, 8, 8}, GruWidths{16, 8, 8}, GruWidths{8, 16, 8}, GruWidths{16, 16, 8}}) {
    const QuantizedGru gru = random_gru(random, 3, 1, widths, GruPipeline::fused, ShiftRounding::half_away);
    Case c{1, 1100};
    c.gates = true;
    check(random, gru, c, {RecurrentCudaOptions{}}, name_of(3, 1, c.steps, c.batch, widths));
  }
  for (const GruWidths widths : {GruWidths{8, 8, 8}, GruWidths{16, 16, 16}}) {
    const QuantizedGru gru = random_gru(random, 3, 17, widths, GruPipeline::staged, ShiftRounding::half_away);
    Case c{3, 70};
    c.lengths = true;
    check(random, gru, c, all_ways(), name_of(3, 17, c.steps, c.batch, widths));
  }
}

// Blocks of several tiles of channels, and of more channels than threads have; clusters of every size.
TEST(GruCuda, ManyChannels) {
  Random random(4);
  const GruWidths widths{8, 8, 8};
  for (const std::int64_t h : {100, 300, 1025}) {
    const QuantizedGru gru = random_gru(random, 70, h, widths, GruPipeline::fused, ShiftRounding::half_away);
    const Case c{3, 2};
    std::vector<RecurrentCudaOptions> ways = all_ways();
    if (h == 300) ways[1].largest_cluster = ways[2].largest_cluster = 4;  // 5 tiles in a block
    if (h > 1000) ways.resize(1);
    check(random, gru, c, ways, name_of(70, h, c.steps, c.batch, widths));
  }
}

// More k than a sum of 32 bits takes; the largest products there are.
TEST(GruCuda, ManyInputs) {
  Random random(5);
  const std::int64_t inputs = 33001;
  for (const GruWidths widths : {GruWidths{8, 8, 8}, GruWidths{8, 16, 8}, GruWidths{16, 8, 8}, GruWidths{16, 16, 8}}) {
    QuantizedGru gru = random_gru(random, inputs, 1, widths, GruPipeline::staged, ShiftRounding::half_away);
    GruParameters p = gru.parameters();
    for (std::size_t i = 0; i < p.w.size(); ++i)
      p.w[i] = static_cast<std::int16_t>(i % 2 ? (1 << (p.weight_bits - 1)) - 1 : -(1 << (p.weight_bits - 1)));
    gru = QuantizedGru::make(p);
    check(random, gru, Case{1, 3}, {RecurrentCudaOptions{}}, name_of(inputs, 1, 1, 3, widths));
  }
  // The largest sums in int32: of high bytes, of low ones, and of both.
  for (const std::int16_t code : {std::int16_t{-32768}, std::int16_t{-32768 + 255}}) {
    const GruWidths widths{16, 16, 8};
    GruParameters p = random_gru(random, 32768, 1, widths, GruPipeline::staged, ShiftRounding::half_away).parameters();
    p.w.assign(p.w.size(), code);
    const QuantizedGru gru = QuantizedGru::make(p);
    const std::vector<std::int16_t> x(32768, code);
    std::vector<std::int8_t> y(2, 77);
    std::vector<std::int32_t> gates(4, 77);
    GruProblem problem;
    problem.gru = &gru.storage();
    problem.steps = problem.batch = 1;
    problem.x = TensorView(x.data(), DType::i16, {1, 1, 32768});
    problem.y = TensorView(y.data(), DType::i8, {1, 1, 1});
    problem.gates = TensorView(gates.data(), DType::i32, {1, 1, 4});
    const DeviceArray<std::int16_t> device_x(x);
    const DeviceArray<std::int8_t> device_y(y);
    const DeviceArray<std::int32_t> device_gates(gates);
    run_gru_reference(problem);
    problem.x.data = device_x.get();
    problem.y.data = device_y.get();
    problem.gates.data = device_gates.get();
    problem.device = problem.x.device = problem.y.device = problem.gates.device = kCuda;
    run_gru_cuda(problem);
    EXPECT_EQ(device_y.host(), y) << code << " squared";
    EXPECT_EQ(device_gates.host(), gates) << code << " squared";
  }
}

TEST(GruCuda, NoSteps) {
  Random random(6);
  for (const bool has_h0 : {false, true})
    for (const DType dtype : {DType::i8, DType::f16}) {
      const QuantizedGru gru = random_gru(random, 4, 9, {8, 8, 8}, GruPipeline::fused, ShiftRounding::half_away);
      Case c{0, 3};
      c.has_h0 = has_h0;
      c.h0 = c.last = dtype;
      check(random, gru, c, all_ways(), "no steps");
    }
}

// Lengths are not checked on a device: one outside of 0 to T is taken for the nearest.
TEST(GruCuda, LengthsOutOfRange) {
  Random random(7);
  const QuantizedGru gru = random_gru(random, 4, 9, {8, 8, 8}, GruPipeline::fused, ShiftRounding::half_away);
  Case c{3, 2};
  c.lengths = c.reverse = true;
  const std::int32_t bad[2] = {-7, 1000}, good[2] = {0, 3};
  Arrays arrays = arrays_of(random, gru, c);
  std::vector<char> results[2];
  for (int i = 0; i < 2; ++i) {
    std::memcpy(arrays.lengths.bytes.data(), i ? good : bad, sizeof bad);
    std::vector<DeviceArray<char>> memory;
    memory.reserve(6);
    const GruProblem problem = problem_of(gru, c, kCuda, arrays, [&](const Array& array) {
      memory.emplace_back(array.bytes);
      return memory.back().get();
    });
    run_gru_persistent(problem);
    results[i] = memory[1].host();  // y
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(GruCuda, Rows) {
  Random random(8);
  const QuantizedGru gru = random_gru(random, 4, 9, {8, 8, 8}, GruPipeline::fused, ShiftRounding::half_away);
  GruProblem problem;
  problem.gru = &gru.storage();
  problem.steps = problem.batch = 1;
  EXPECT_STREQ(gru_cuda_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(gru_persistent_unsupported_reason(problem), "it runs on CUDA devices");
  problem.device = kCuda;
  EXPECT_EQ(gru_cuda_unsupported_reason(problem), nullptr);
  EXPECT_STREQ(gru_persistent_unsupported_reason(problem), "it has less than two steps");
  problem.steps = 2;
  EXPECT_EQ(gru_persistent_unsupported_reason(problem), nullptr);
  problem.batch = 129;
  EXPECT_STREQ(gru_persistent_unsupported_reason(problem), "it has more than 128 rows");
  problem.batch = 1;
  const QuantizedGru large = random_gru(random, 1, 1025, {8, 8, 8}, GruPipeline::fused, ShiftRounding::half_away);
  problem.gru = &large.storage();
  EXPECT_STREQ(gru_persistent_unsupported_reason(problem),
               "R takes more than 128 KB of shared memory per thread block");
  GruParameters p = gru.parameters();
  p.linear_before_reset = false;
  p.formats.rrh = p.formats.h;
  const QuantizedGru resets = QuantizedGru::make(p);
  problem.gru = &resets.storage();
  EXPECT_EQ(gru_cuda_unsupported_reason(problem), nullptr);
  EXPECT_STREQ(gru_persistent_unsupported_reason(problem), "linear_before_reset is 0: a step has two products");
}

TEST(GruCuda, LayersAreUploadedOnce) {
  Random random(9);
  const int before = cuda_host::live_allocations();
  {
    const QuantizedGru gru = random_gru(random, 4, 9, {8, 8, 8}, GruPipeline::fused, ShiftRounding::half_away);
    const RecurrentDeviceArrays& first = gru.storage().on_device(0);
    EXPECT_EQ(&gru.storage().on_device(0), &first);
    EXPECT_EQ(cuda_host::live_allocations(), before + 1);
  }
  EXPECT_EQ(cuda_host::live_allocations(), before);
}

TEST(GruCuda, FixedCodes) {
  Random random(10);
  for (const int bits : {2, 7, 8, 11, 16})
    for (const DType dtype : kFloats) {
      const FixedFormat format = random_format(random, bits, true, 1, 3);
      for (const bool quantize : {true, false})
        for (int layout = 0; layout < 3; ++layout) {
          const DType codes = code_dtype(format);
          Array from(quantize ? dtype : codes, {3, 5, 7}, layout), to(quantize ? codes : dtype, {3, 5, 7}, 2 - layout);
          fill_random(random, from, format);
          const DeviceArray<char> device_from(from.bytes), device_to(to.bytes);
          TensorView from_view = from.view, to_view = to.view;
          from_view.data = from.bytes.data(), to_view.data = to.bytes.data();
          quantize ? quantize_fixed(from_view, format, to_view) : dequantize_fixed(from_view, format, to_view);
          from_view.data = device_from.get(), to_view.data = device_to.get();
          from_view.device = to_view.device = kCuda;
          convert_fixed_cuda(from_view, CodeFormat(format), to_view, nullptr);
          expect_equal(device_to.host(), to.bytes, quantize ? "quantized" : "dequantized");
        }
    }
  // A NaN is the zero point, infinities are the ends.
  const FixedFormat format{8, true, 4, 5};
  const float infinity = std::numeric_limits<float>::infinity();
  const DeviceArray<float> x(std::vector<float>{std::numeric_limits<float>::quiet_NaN(), infinity, -infinity});
  const DeviceArray<std::int8_t> codes(std::vector<std::int8_t>(3));
  convert_fixed_cuda(TensorView(x.get(), DType::f32, {3}, kCuda), CodeFormat(format),
                     TensorView(codes.get(), DType::i8, {3}, kCuda), nullptr);
  EXPECT_EQ(codes.host(), (std::vector<std::int8_t>{5, 127, -128}));
}

}  // namespace
}  // namespace qcore
