// The CUDA rows of lstm on the machine against the reference kernel: the same integers, and not a byte changed around
// them.

#include <gtest/gtest.h>

#include <vector>

#include "cuda_runtime.h"
#include "lstm/cpu/packed.h"
#include "lstm/cuda/kernels.h"
#include "lstm/dispatch.h"
#include "random_lstm.h"
#include "recurrent_arrays.h"

namespace qcore {
namespace {

constexpr int kArrays = 7;
constexpr const char* kNames[kArrays] = {"x", "h0", "c0", "y", "h_last", "c_last", "lengths"};

struct Case {
  std::int64_t steps, batch;
  DType dtypes[kArrays] = {};  // floats; others take the codes of their format
  bool has_initial = true, has_last = true, lengths = false, reverse = false;
  int layout = 0;
};

struct Arrays {
  Array all[kArrays];
};

Arrays arrays_of(Random& random, const QuantizedLstm& lstm, const Case& c) {
  const LstmParameters& p = lstm.parameters();
  const LstmFormats& f = p.formats;
  const FixedFormat* const formats[] = {&f.x, &f.h, &f.c, &f.h, &f.h, &f.c};
  Arrays made;
  for (int i = 0; i < 6; ++i) {
    const bool initial = i == 1 || i == 2, last = i == 4 || i == 5;
    if ((initial && !c.has_initial) || (last && !c.has_last)) continue;
    const std::vector<std::int64_t> state = {c.batch, i == 2 || i == 5 ? p.hidden_size : p.state_size()};
    const DType dtype = dtype_of(c.dtypes[i], *formats[i]);
    made.all[i] = i == 0   ? Array(dtype, {c.steps, c.batch, p.input_size}, c.layout)
                  : i == 3 ? Array(dtype, {c.steps, c.batch, p.state_size()}, c.layout)
                           : Array(dtype, state, c.layout);
    if (i < 3) fill_random(random, made.all[i], *formats[i]);
  }
  if (c.lengths) {
    made.all[6] = Array(DType::i32, {c.batch}, c.layout);
    made.all[6].fill([&](char* data, std::int64_t at) {
      reinterpret_cast<std::int32_t*>(data)[at] = between(random, 0, static_cast<int>(c.steps));
    });
  }
  return made;
}

// `place(index)` returns where an array of the problem lies.
template <class Place>
LstmProblem problem_of(const QuantizedLstm& lstm, const Case& c, Device device, const Arrays& arrays,
                       const Place& place) {
  LstmProblem problem;
  problem.lstm = &lstm.storage();
  problem.steps = c.steps;
  problem.batch = c.batch;
  problem.reverse = c.reverse;
  problem.device = device;
  TensorView* const views[] = {&problem.x,    &problem.h0,        &problem.c0,     &problem.y,
                               &problem.last, &problem.last_cell, &problem.lengths};
  for (int i = 0; i < kArrays; ++i) {
    *views[i] = arrays.all[i].view;
    views[i]->data = arrays.all[i].empty() ? nullptr : place(i);
    views[i]->device = device;
  }
  return problem;
}

// Every way to run the case against the reference; the persistent kernel where it is for it.
void check(Random& random, const QuantizedLstm& lstm, const Case& c, const std::vector<RecurrentCudaOptions>& ways,
           const std::string& what) {
  Arrays arrays = arrays_of(random, lstm, c);
  const Arrays untouched = arrays;
  run_lstm_reference(problem_of(lstm, c, kCpu, arrays, [&](int i) { return arrays.all[i].bytes.data(); }));
  for (const RecurrentCudaOptions& way : ways) {
    std::vector<DeviceArray<char>> memory;
    for (const Array& array : untouched.all) memory.emplace_back(array.bytes);
    const LstmProblem problem = problem_of(lstm, c, kCuda, untouched, [&](int i) { return memory[i].get(); });
    if (way.persistent && lstm_persistent_unsupported_reason(problem)) continue;
    run_lstm_cuda(problem, way);
    for (int i = 0; i < kArrays; ++i)
      expect_equal(memory[i].host(), arrays.all[i].bytes, what + name_of(way) + kNames[i]);
  }
}

TEST(LstmCuda, Presets) {
  Random random(1);
  for (const ShiftRounding rounding : kRoundings)
    for (const GruWidths widths :
         {GruWidths{8, 8, 8}, GruWidths{16, 16, 16}, GruWidths{8, 16, 16}, GruWidths{16, 8, 8}})
      for (const std::int64_t batch : {3, 10}) {
        const QuantizedLstm lstm = random_lstm(random, 20, 33, widths, rounding);
        check(random, lstm, {4, batch}, all_ways(), name_of(20, 33, 4, batch, widths));
      }
}

constexpr int kSizes[] = {1, 2, 15, 16, 17, 40, 65};

Case random_case(Random& random) {
  Case c{between(random, 1, 5), random.below(4) ? between(random, 1, 5) : between(random, 9, 20)};
  for (DType& dtype : c.dtypes) dtype = random.below(2) ? DType::i8 : kFloats[random.below(3)];
  c.has_initial = random.below(3) > 0;
  c.has_last = random.below(3) > 0;
  c.lengths = random.below(2) > 0;
  c.reverse = random.below(2) > 0;
  c.layout = random.below(3);
  return c;
}

TEST(LstmCuda, RandomWidthsShapesAndOptions) {
  Random random(2);
  int narrow = 0;
  for (int i = 0; i < 40; ++i) {
    const GruWidths widths{between(random, 2, 16), between(random, 2, 16), between(random, 2, 16)};
    const std::int64_t inputs = kSizes[random.below(7)], h = kSizes[random.below(7)];
    const QuantizedLstm lstm = random_lstm(random, inputs, h, widths, kRoundings[random.below(2)], i % 4 == 0);
    const Case c = random_case(random);
    std::vector<RecurrentCudaOptions> ways = all_ways();
    ways[2].largest_cluster = between(random, 1, 8);
    for (RecurrentCudaOptions& way : ways)
      if (random.below(2)) way.scratch_bytes = 5000;  // many parts
    check(random, lstm, c, ways, name_of(inputs, h, c.steps, c.batch, widths));
    narrow += lstm.storage().packed->layer.width != LaneWidth::scalar;
  }
  EXPECT_GE(narrow, 20);
  EXPECT_LE(narrow, 36);
}

// Steps of several launches.
TEST(LstmCuda, ProjectionsAndPeepholes) {
  Random random(9);
  const RecurrentCudaOptions whole;
  RecurrentCudaOptions parts;
  parts.scratch_bytes = 5000;
  for (int i = 0; i < 48; ++i) {
    const GruWidths widths{between(random, 2, 16), between(random, 2, 16), between(random, 2, 16)};
    const std::int64_t inputs = kSizes[random.below(7)], h = kSizes[random.below(7)];
    const bool peepholes = i % 3 != 0;
    const std::int64_t projection = i % 3 == 1 ? 0 : kSizes[random.below(7)];
    const QuantizedLstm lstm =
        random_lstm(random, inputs, h, widths, kRoundings[random.below(2)], i % 4 == 0, projection, peepholes);
    const Case c = random_case(random);
    check(random, lstm, c, {whole, parts},
          name_of(inputs, h, c.steps, c.batch, widths) + ", projection " + std::to_string(projection));
  }
  // More rows than a block of the products has, and more channels than one of the cell has.
  for (const GruWidths widths : {GruWidths{8, 8, 8}, GruWidths{16, 16, 16}}) {
    const QuantizedLstm lstm = random_lstm(random, 3, 70, widths, ShiftRounding::half_away, false, 33, true);
    Case c{3, 140};
    c.lengths = true;
    check(random, lstm, c, {whole}, name_of(3, 70, c.steps, c.batch, widths));
  }
}

TEST(LstmCuda, InterpolatedTables) {
  Random random(3);
  int made = 0;
  for (int i = 0; i < 100 && made < 3; ++i) {
    LstmParameters p = random_lstm(random, 5, 17, {8, 8, 8}, ShiftRounding::half_away).parameters();
    p.tables = TableKind::interp;
    try {
      check(random, QuantizedLstm::make(p), {3, 2}, all_ways(), "interpolated tables");
      ++made;
    } catch (const ValueError&) {  // straight lines are too far from a function
    }
  }
  EXPECT_EQ(made, 3);
}

// A run of one step is one launch, which takes codes and floats as they lie.
TEST(LstmCuda, OneStep) {
  Random random(12);
  for (const GruWidths widths : {GruWidths{8, 8, 8}, GruWidths{16, 16, 16}, GruWidths{8, 16, 16}, GruWidths{16, 8, 8}})
    for (const std::int64_t batch : {3, 21})
      for (const std::int64_t h : {9, 100}) {
        const QuantizedLstm lstm = random_lstm(random, 70, h, widths, ShiftRounding::half_away);
        Case c{1, batch};
        c.lengths = true;
        if (batch == 3) c.dtypes[0] = DType::f16, c.dtypes[3] = DType::f32;
        c.reverse = h == 9;
        c.layout = h == 9 ? 2 : 1;
        check(random, lstm, c, {RecurrentCudaOptions{}}, name_of(70, h, 1, batch, widths));
      }
}

// Blocks of several tiles of channels, and of more channels than threads have.
TEST(LstmCuda, ManyChannelsAndRows) {
  Random random(4);
  const GruWidths widths{8, 8, 8};
  for (const std::int64_t h : {100, 300}) {
    const QuantizedLstm lstm = random_lstm(random, 70, h, widths, ShiftRounding::half_away);
    std::vector<RecurrentCudaOptions> ways = all_ways();
    if (h == 300) ways[1].largest_cluster = ways[2].largest_cluster = 4;  // 5 tiles in a block
    check(random, lstm, {3, 2}, ways, name_of(70, h, 3, 2, widths));
  }
  Case c{3, 70};
  c.lengths = true;
  const QuantizedLstm lstm = random_lstm(random, 3, 17, {16, 16, 16}, ShiftRounding::half_away);
  check(random, lstm, c, all_ways(), name_of(3, 17, 3, 70, {16, 16, 16}));
}

TEST(LstmCuda, NoSteps) {
  Random random(5);
  for (const bool has_initial : {false, true})
    for (const DType dtype : {DType::i8, DType::f16}) {
      const QuantizedLstm lstm = random_lstm(random, 4, 9, {8, 8, 8}, ShiftRounding::half_away);
      Case c{0, 3};
      c.has_initial = has_initial;
      for (const int i : {1, 2, 4, 5}) c.dtypes[i] = dtype;
      check(random, lstm, c, all_ways(), "no steps");
      const QuantizedLstm projected = random_lstm(random, 4, 9, {8, 8, 8}, ShiftRounding::half_away, false, 5);
      check(random, projected, c, {RecurrentCudaOptions{}}, "no steps, projection");
    }
}

// The last states take the place of the first ones.
TEST(LstmCuda, StatesInPlace) {
  Random random(6);
  const QuantizedLstm lstm = random_lstm(random, 4, 20, {8, 8, 8}, ShiftRounding::half_away);
  for (const std::int64_t steps : {1, 3}) {
    const Case c{steps, 5};
    Arrays arrays = arrays_of(random, lstm, c);
    const Arrays untouched = arrays;
    run_lstm_reference(problem_of(lstm, c, kCpu, arrays, [&](int i) { return arrays.all[i].bytes.data(); }));
    for (const RecurrentCudaOptions& way : all_ways()) {
      std::vector<DeviceArray<char>> memory;
      for (const Array& array : untouched.all) memory.emplace_back(array.bytes);
      const LstmProblem problem =
          problem_of(lstm, c, kCuda, untouched, [&](int i) { return memory[i == 4 || i == 5 ? i - 3 : i].get(); });
      if (way.persistent && lstm_persistent_unsupported_reason(problem)) continue;
      run_lstm_cuda(problem, way);
      for (const int i : {4, 5}) expect_equal(memory[i - 3].host(), arrays.all[i].bytes, kNames[i]);
    }
  }
}

TEST(LstmCuda, Rows) {
  Random random(7);
  const QuantizedLstm lstm = random_lstm(random, 4, 9, {8, 8, 8}, ShiftRounding::half_away);
  LstmProblem problem;
  problem.lstm = &lstm.storage();
  problem.steps = problem.batch = 1;
  EXPECT_STREQ(lstm_cuda_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(lstm_persistent_unsupported_reason(problem), "it runs on CUDA devices");
  problem.device = kCuda;
  EXPECT_EQ(lstm_cuda_unsupported_reason(problem), nullptr);
  EXPECT_STREQ(lstm_persistent_unsupported_reason(problem), "it has less than two steps");
  problem.steps = 2;
  EXPECT_EQ(lstm_persistent_unsupported_reason(problem), nullptr);
  problem.batch = 129;
  EXPECT_STREQ(lstm_persistent_unsupported_reason(problem), "it has more than 128 rows");
  problem.batch = 1;
  const QuantizedLstm even = random_lstm(random, 4, 9, {8, 8, 8}, ShiftRounding::half_even);
  problem.lstm = &even.storage();
  EXPECT_STREQ(lstm_persistent_unsupported_reason(problem),
               "it rounds halves to even, or has numbers of more than 32 bits");
  // 5 tiles of 16 channels of 4 gates in a block of 8.
  const QuantizedLstm large = random_lstm(random, 1, 513, {8, 8, 8}, ShiftRounding::half_away);
  problem.lstm = &large.storage();
  EXPECT_STREQ(lstm_persistent_unsupported_reason(problem),
               "R takes more than 128 KB of shared memory per thread block");
  const QuantizedLstm projected = random_lstm(random, 4, 9, {8, 8, 8}, ShiftRounding::half_away, false, 5);
  const QuantizedLstm peepholes = random_lstm(random, 4, 9, {8, 8, 8}, ShiftRounding::half_away, false, 0, true);
  for (const QuantizedLstm* lstm : {&projected, &peepholes}) {
    problem.lstm = &lstm->storage();
    EXPECT_EQ(lstm_cuda_unsupported_reason(problem), nullptr);
    EXPECT_STREQ(lstm_persistent_unsupported_reason(problem),
                 "the LSTM has peepholes or a projection (projection_size)");
  }
}

TEST(LstmCuda, LayersAreUploadedOnce) {
  Random random(8);
  const int before = cuda_host::live_allocations();
  {
    const QuantizedLstm lstm = random_lstm(random, 4, 9, {8, 8, 8}, ShiftRounding::half_away);
    const RecurrentDeviceArrays& first = lstm.storage().on_device(0);
    EXPECT_EQ(&lstm.storage().on_device(0), &first);
    EXPECT_EQ(cuda_host::live_allocations(), before + 1);
  }
  EXPECT_EQ(cuda_host::live_allocations(), before);
}

}  // namespace
}  // namespace qcore
