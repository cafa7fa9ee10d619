#include <cmath>

#include "allocations.h"
#include "fixed_codes.h"
#include "qcore/recurrent/lstm.h"
#include "random_lstm.h"
#include "reference_results.h"
#include "support.h"

// The fixed-point LSTM: one step by hand, and every kernel against the reference.
namespace qcore::test {
namespace {

// C = H = 1, all exponents of weights 0: the arguments of the gates are x plus the biases.
LstmParameters small() {
  LstmParameters p;
  p.input_size = p.hidden_size = 1;
  LstmFormats& f = p.formats;
  f.x = f.h = {8, true, 6, 0};
  f.c = {16, true, 12, 0};
  for (FixedFormat* format : {&f.wx, &f.rh, &f.i_pre, &f.f_pre, &f.g_pre, &f.o_pre}) *format = {16, true, 10, 0};
  for (FixedFormat* format : {&f.i, &f.f, &f.o}) *format = {8, false, 8, 0};
  f.g = {8, true, 7, 0};
  f.c_tanh = {16, true, 15, 0};
  p.w = {1, 1, 1, 1};
  p.r = {0, 0, 0, 0};
  p.b = {0, 1, 0, -1};
  p.w_exponents = p.r_exponents = p.b_exponents = {0, 0, 0, 0};
  return p;
}

TEST(Lstm, OneStepByHand) {
  const auto lstm = QuantizedLstm::make(small());
  const std::int8_t x = 32;      // 0.5
  const std::int16_t c0 = 2048;  // 0.5
  std::int8_t y = 0;
  std::int16_t c = 0;
  const TensorView c0_view(&c0, DType::i16, {1, 1}), c_view(static_cast<void*>(&c), DType::i16, {1, 1});
  LstmStates states;
  states.c0 = &c0_view;
  states.c_last = &c_view;
  lstm.run(TensorView(&x, DType::i8, {1, 1, 1}), TensorView(static_cast<void*>(&y), DType::i8, {1, 1, 1}), states);
  // i = sigmoid(0.5) = 159 / 256, f = sigmoid(1.5) = 209 / 256, g = tanh(0.5) = 59 / 128, o = sigmoid(-0.5) = 97 / 256.
  // f * c is 428032 * 2^-20, i * g 9381 * 2^-15 = 300192 * 2^-20; their sum 728224 * 2^-20 = 2844.6 * 2^-12.
  EXPECT_EQ(c, 2845);
  // tanh(2845 / 4096) = 19691 / 32768; 97 * 19691 * 2^-23 = 14.57 * 2^-6.
  EXPECT_EQ(lstm.table(4)[32768 + 2845], 19691);
  EXPECT_EQ(y, 15);
}

TEST(Lstm, LengthsFreezeTheStates) {
  const auto lstm = QuantizedLstm::make(small());
  std::vector<std::int8_t> x(5 * 3, 20), y(5 * 3, 99), h(3, 99);
  std::vector<std::int16_t> c(3, 99), c_of_two(3, 99);
  const std::int32_t lengths[] = {5, 0, 2};
  const TensorView lengths_view(lengths, DType::i32, {3}), h_view(h.data(), DType::i8, {3, 1});
  const TensorView c_view(c.data(), DType::i16, {3, 1}), c_of_two_view(c_of_two.data(), DType::i16, {3, 1});
  LstmRun options;
  options.lengths = &lengths_view;
  const TensorView x_view(x.data(), DType::i8, {5, 3, 1}), y_view(y.data(), DType::i8, {5, 3, 1});
  lstm.run(x_view, y_view, {nullptr, nullptr, &h_view, &c_view}, options);
  EXPECT_EQ(h[0], y[4 * 3]);
  EXPECT_EQ(h[1], 0);
  EXPECT_EQ(c[1], 0);
  EXPECT_EQ(h[2], y[1 * 3 + 2]);
  for (int t = 2; t < 5; ++t) EXPECT_EQ(y[t * 3 + 2], 0);
  const TensorView first_two(x.data(), DType::i8, {2, 3, 1}), y_of_two(y.data(), DType::i8, {2, 3, 1});
  lstm.run(first_two, y_of_two, {nullptr, nullptr, &h_view, &c_of_two_view});
  EXPECT_EQ(c[2], c_of_two[2]);
}

TEST(Lstm, StepsDoNotAllocate) {
  Random random(3);
  for (const std::int64_t projection : {0, 3}) {
    const std::int64_t size = projection ? projection : 20;
    const auto stack = LstmStack::make(
        {random_lstm(random, 5, 20, {8, 8, 8}, ShiftRounding::half_away, false, projection, projection > 0)}, 1);
    const DType c_type = stack.cell(0, 0).parameters().formats.c.bits <= 8 ? DType::i8 : DType::i16;
    std::vector<float> numbers(5, 0.25f), y_numbers(size);
    std::vector<std::int8_t> codes(5, 3), y_codes(size), h(size);
    std::vector<std::int16_t> c(20);
    const TensorView h_view(h.data(), DType::i8, {1, 1, size}), c_view(c.data(), c_type, {1, 1, 20});
    const TensorView inputs[] = {TensorView(codes.data(), DType::i8, {1, 5}),
                                 TensorView(numbers.data(), DType::f32, {1, 5})};
    const TensorView outputs[] = {TensorView(y_codes.data(), DType::i8, {1, size}),
                                  TensorView(y_numbers.data(), DType::f32, {1, size})};
    std::int64_t before = 0;
    for (int step = 0; step < 10; ++step) {
      if (step == 1) before = allocation_count();  // the first one makes what a thread keeps
      for (int kind = 0; kind < 2; ++kind) stack.run(inputs[kind], outputs[kind], {&h_view, &c_view, &h_view, &c_view});
    }
    EXPECT_GT(before, 0);
    EXPECT_EQ(allocation_count() - before, 0);
  }
}

TEST(Lstm, UnsafeParametersAreRefused) {
  const auto refused = [](const auto& change) {
    LstmParameters p = small();
    change(p);
    return error_of<ValueError>([&] { QuantizedLstm::make(p); });
  };
  EXPECT_EQ(refused([](LstmParameters& p) { p.w[3] = 200; }), "lstm: w[3] is 200, expected a code of 8 bits");
  EXPECT_EQ(refused([](LstmParameters& p) { p.b.pop_back(); }), "lstm: b has 3 elements, expected 4");
  EXPECT_EQ(refused([](LstmParameters& p) {
              p.formats.i_pre.exponent = 100;
            }).find("lstm: Wx for i up to 32768 is shifted left by 90"),
            0u);
  EXPECT_EQ(refused([](LstmParameters& p) {
              p.formats.c.exponent = 60;
            }).find("lstm: i * g up to 32640 is shifted left by 53"),
            0u);
}

struct Sizes {
  std::int64_t steps, batch, c, h, projection = 0;
  bool peepholes = false;
};

struct Run {
  Codes y, h, c;
};

Run run(const QuantizedLstm& lstm, const Sizes& s, Codes& x, Codes& h0, Codes& c0,
        const std::vector<std::int32_t>& lengths, bool reverse, const std::string& kernel) {
  const LstmFormats& f = lstm.parameters().formats;
  const std::int64_t size = lstm.parameters().state_size();
  Run result{Codes(s.steps * s.batch * size, f.h), Codes(s.batch * size, f.h), Codes(s.batch * s.h, f.c)};
  const TensorView h0_view = h0.view({s.batch, size}), c0_view = c0.view({s.batch, s.h}),
                   h_view = result.h.view({s.batch, size}), c_view = result.c.view({s.batch, s.h}),
                   lengths_view(lengths.data(), DType::i32, {s.batch});
  LstmRun options;
  options.reverse = reverse;
  if (!lengths.empty()) options.lengths = &lengths_view;
  const ForceKernel force("lstm", kernel);
  lstm.run(x.view({s.steps, s.batch, s.c}), result.y.view({s.steps, s.batch, size}),
           {&h0_view, &c0_view, &h_view, &c_view}, options);
  EXPECT_EQ(last_kernel("lstm"), kernel);
  return result;
}

void check(Random& random, const Sizes& s, const GruWidths& widths, bool extreme) {
  const auto rounding = random.below(2) ? ShiftRounding::half_away : ShiftRounding::half_even;
  const QuantizedLstm lstm = random_lstm(random, s.c, s.h, widths, rounding, extreme, s.projection, s.peepholes);
  const LstmFormats& f = lstm.parameters().formats;
  Codes x(s.steps * s.batch * s.c, f.x), h0(s.batch * lstm.parameters().state_size(), f.h), c0(s.batch * s.h, f.c);
  x.fill(random, f.x);
  h0.fill(random, f.h);
  c0.fill(random, f.c);
  std::vector<std::int32_t> lengths;
  if (random.below(2))
    for (std::int64_t b = 0; b < s.batch; ++b) lengths.push_back(random.below(static_cast<int>(s.steps) + 1));
  const bool reverse = random.below(2) > 0;
  Run expected = run(lstm, s, x, h0, c0, lengths, reverse, "reference");
  compare_with_unoptimized(expected.y.bytes());
  compare_with_unoptimized(expected.c.bytes());
  for (const KernelInfo& kernel : kernels("lstm")) {
    if (!kernel.available || kernel.device != "cpu" || kernel.name == "reference") continue;
    SCOPED_TRACE(kernel.name + ": T " + std::to_string(s.steps) + ", B " + std::to_string(s.batch) + ", C " +
                 std::to_string(s.c) + ", H " + std::to_string(s.h) + ", P " + std::to_string(s.projection) +
                 (s.peepholes ? ", peepholes" : "") + ", weights " + std::to_string(widths.weights) + ", x " +
                 std::to_string(widths.x) + ", h " + std::to_string(widths.h));
    Run got = run(lstm, s, x, h0, c0, lengths, reverse, kernel.name);
    EXPECT_TRUE(got.y == expected.y);
    EXPECT_TRUE(got.h == expected.h);
    EXPECT_TRUE(got.c == expected.c);
  }
}

// Kernels may find the codes of 8 bits of sigmoid and tanh in other ways than in a table.
TEST(Lstm, EveryArgumentOfGatesOfBytes) {
  const Sizes s{1, 65536, 1, 1};
  for (int exponent = 4; exponent <= 16; exponent += 2) {
    LstmParameters p = small();
    LstmFormats& f = p.formats;
    f.x = {16, true, exponent, 0};
    for (FixedFormat* format : {&f.wx, &f.rh, &f.i_pre, &f.f_pre, &f.o_pre}) *format = {16, true, exponent, 0};
    f.g_pre = {16, true, exponent - 1, 100};
    f.g.exponent = exponent % 4 ? 7 : 8;
    p.b = {0, 0, 0, 0};
    const auto lstm = QuantizedLstm::make(p);
    Codes x(s.batch, f.x), h0(s.batch, f.h), c0(s.batch, f.c);
    auto* codes = static_cast<std::int16_t*>(x.view({65536}).data);
    for (int i = 0; i < 65536; ++i) codes[i] = static_cast<std::int16_t>(i - 32768);
    Random random(exponent);
    c0.fill(random, f.c);
    auto expected = run(lstm, s, x, h0, c0, {}, false, "reference");
    for (const KernelInfo& kernel : kernels("lstm")) {
      if (!kernel.available || kernel.device != "cpu" || kernel.name == "reference") continue;
      SCOPED_TRACE(kernel.name + ", exponent " + std::to_string(exponent));
      auto got = run(lstm, s, x, h0, c0, {}, false, kernel.name);
      EXPECT_TRUE(got.y == expected.y);
      EXPECT_TRUE(got.c == expected.c);
    }
  }
}

TEST(Lstm, EveryKernelGivesTheReferencesBits) {
  Random random(6);
  const int before = get_num_threads();
  constexpr GruWidths kPresets[] = {{8, 8, 8}, {16, 16, 16}, {8, 16, 16}, {16, 8, 8}, {4, 8, 16}};
  // Every number of rows that tiles take at once, and thirds of channels.
  for (int batch = 1; batch <= 17; ++batch) {
    set_num_threads(1 + batch % 3);
    check(random, {3, batch, 5 + batch, 3 * batch}, kPresets[batch % 5], false);
  }
  for (int i = 0; i < 24; ++i) {
    const GruWidths widths{between(random, 2, 16), between(random, 2, 16), between(random, 2, 16)};
    check(random,
          {between(random, 1, 4), between(random, 1, 9), between(random, 1, 70), between(random, 1, 70),
           i % 2 ? between(random, 1, 70) : 0, i % 3 == 0},
          widths, i % 4 == 0);
  }
  // Enough work for several threads, which share rows or channels.
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    check(random, {4, 2, 96, 256}, kPresets[0], false);
    check(random, {3, 20, 64, 200}, kPresets[1], false);
    check(random, {4, 2, 96, 256, 48}, kPresets[0], false);
    check(random, {3, 1, 64, 512, 20, true}, kPresets[1], false);
    check(random, {4, 2, 96, 256, 0, true}, kPresets[0], false);
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace qcore::test
