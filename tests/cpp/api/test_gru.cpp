#include "allocations.h"
#include "support.h"

// The fixed-point GRU through the C++ API. Its integers are compared with an oracle from Python.
namespace qcore::test {
namespace {

// C = 2, H = 1: z and r are sigmoid of small numbers, g is tanh.
GruParameters small() {
  GruParameters p;
  p.input_size = 2;
  p.hidden_size = 1;
  GruFormats& f = p.formats;
  f.x = {8, true, 6, 0};
  f.h = {8, true, 7, 0};
  for (FixedFormat* format : {&f.wx, &f.rh, &f.rb, &f.rrh, &f.z_pre, &f.r_pre, &f.g_pre}) *format = {16, true, 12, 0};
  f.z = f.r = {8, false, 8, 0};
  f.g = {8, true, 7, 0};
  f.old_part = f.new_part = {16, true, 14, 0};
  p.w = {64, 0, 0, 64, 64, 64};
  p.r = {0, 0, 32};
  p.bx = p.br = {0, 0, 0};
  p.w_exponents = p.r_exponents = {6, 6, 6};
  p.bx_exponents = p.br_exponents = {8, 8, 8};
  return p;
}

TEST(Gru, OneStepByHand) {
  for (const GruPipeline pipeline : {GruPipeline::staged, GruPipeline::fused}) {
    GruParameters p = small();
    p.pipeline = pipeline;
    const auto gru = QuantizedGru::make(p);
    // x = (1, -0.5): z = sigmoid(1) = 0.731, r = sigmoid(-0.5) = 0.378, g = tanh(0.5) = 0.462, h = 0.269 * 0.462 =
    // 0.124.
    const std::int8_t x[] = {64, -32};
    std::int8_t y[1] = {99}, last[1] = {99};
    std::int32_t gates[4];
    const TensorView last_view(last, DType::i8, {1, 1}), gates_view(gates, DType::i32, {1, 1, 4});
    GruRun options;
    options.gates = &gates_view;
    const ForceKernel force("gru", "reference");
    gru.run(TensorView(x, DType::i8, {1, 1, 2}), nullptr, TensorView(y, DType::i8, {1, 1, 1}), &last_view, options);
    EXPECT_EQ(last_kernel("gru"), "reference");
    EXPECT_EQ(gates[0], 187);  // 0.731 * 256
    EXPECT_EQ(gates[1], 97);   // 0.378 * 256
    EXPECT_EQ(gates[2], 59);   // 0.462 * 128
    EXPECT_EQ(gates[3], 0);
    EXPECT_EQ(y[0], 16);  // 0.124 * 128
    EXPECT_EQ(last[0], 16);
  }
}

TEST(Gru, LengthsFreezeTheState) {
  const auto gru = QuantizedGru::make(small());
  std::vector<std::int8_t> x(5 * 3 * 2, 20), y(5 * 3, 99), last(3, 99);
  const std::int32_t lengths[] = {5, 0, 2};
  const TensorView lengths_view(lengths, DType::i32, {3}), last_view(last.data(), DType::i8, {3, 1});
  GruRun options;
  options.lengths = &lengths_view;
  gru.run(TensorView(x.data(), DType::i8, {5, 3, 2}), nullptr, TensorView(y.data(), DType::i8, {5, 3, 1}), &last_view,
          options);
  EXPECT_EQ(last[0], y[4 * 3]);
  EXPECT_EQ(last[1], 0);
  EXPECT_EQ(last[2], y[1 * 3 + 2]);
  for (int t = 2; t < 5; ++t) EXPECT_EQ(y[t * 3 + 2], 0);
}

TEST(Gru, StepsDoNotAllocate) {
  const auto stack = GruStack::make({QuantizedGru::make(small())}, 1);
  const std::int8_t codes[] = {64, -32};
  const float numbers[] = {1.0f, -0.5f};
  std::int8_t y_codes[1], state[1] = {0};
  float y_numbers[1];
  const TensorView last(state, DType::i8, {1, 1, 1});
  const TensorView inputs[] = {TensorView(codes, DType::i8, {1, 2}), TensorView(numbers, DType::f32, {1, 2})};
  const TensorView outputs[] = {TensorView(y_codes, DType::i8, {1, 1}), TensorView(y_numbers, DType::f32, {1, 1})};
  std::int64_t before = 0;
  for (int step = 0; step < 10; ++step) {
    if (step == 1) before = allocation_count();  // the first one makes what a thread keeps
    for (int kind = 0; kind < 2; ++kind) stack.run(inputs[kind], &last, outputs[kind], &last);
  }
  EXPECT_GT(before, 0);
  EXPECT_EQ(allocation_count() - before, 0);
}

TEST(Gru, UnsafeParametersAreRefused) {
  GruParameters p = small();
  p.formats.z_pre.exponent = 100;
  EXPECT_EQ(
      error_of<ValueError>([&] { QuantizedGru::make(p); }).find("gru: Wx for z up to 32768 is shifted left by 88"), 0u);
  p = small();
  p.w[3] = 200;
  EXPECT_EQ(error_of<ValueError>([&] { QuantizedGru::make(p); }), "gru: w[3] is 200, expected a code of 8 bits");
  const auto gru = QuantizedGru::make(small());
  std::int8_t x[2] = {}, y[1] = {7};
  EXPECT_EQ(error_of<ValueError>(
                [&] { gru.run(TensorView(x, DType::i8, {2}), nullptr, TensorView(y, DType::i8, {1, 1, 1}), nullptr); }),
            "gru: x has shape [2], expected [T, B, C] with C = 2");
  EXPECT_EQ(y[0], 7);
}

TEST(Gru, TraceHasEverythingThatAStepComputes) {
  for (const GruPipeline pipeline : {GruPipeline::staged, GruPipeline::fused}) {
    GruParameters p = small();
    p.pipeline = pipeline;
    const auto gru = QuantizedGru::make(p);
    const std::int8_t x[] = {64, -32};  // as OneStepByHand
    Guarded<std::int32_t> trace(17);
    const TensorView view(trace.data(), DType::i32, {1, 1, 17});
    gru.trace(TensorView(x, DType::i8, {1, 1, 2}), nullptr, false, view);
    // W x is 1, -0.5 and 0.5 with an exponent of 12; r * (R h + b) is 0; the parts of h have an exponent of 14.
    const std::vector<std::int32_t> expected = {4096, -2048, 2048, 0, 0, 0, 4096, -2048, 0, 0, 2048, 187, 97, 59};
    EXPECT_EQ(std::vector<std::int32_t>(trace.data(), trace.data() + 14), expected);
    EXPECT_EQ(trace[14], 0);
    EXPECT_EQ(trace[15], pipeline == GruPipeline::staged ? (256 - 187) * 59 / 2 + 1 : 0);
    EXPECT_EQ(trace[16], 16);
    EXPECT_TRUE(trace.guards_intact());
  }
  const auto gru = QuantizedGru::make(small());
  const std::int8_t x[2] = {};
  std::int32_t trace[17];
  EXPECT_EQ(error_of<ValueError>([&] {
              gru.trace(TensorView(x, DType::i8, {1, 1, 2}), nullptr, false, TensorView(trace, DType::i32, {1, 1, 4}));
            }),
            "gru: trace has shape [1, 1, 4], expected [1, 1, 17]");
}

TEST(Gru, InterpolatedTables) {
  GruParameters p = small();
  p.formats.r_pre.bits = 8;
  p.formats.r_pre.exponent = 4;
  const auto exact = QuantizedGru::make(p);
  p.tables = GruTableKind::interp;
  const auto interp = QuantizedGru::make(p);
  for (const int gate : {0, 2}) {
    EXPECT_TRUE(exact.knots(gate).starts.empty());
    EXPECT_EQ(interp.knots(gate).starts.size(), 513u);
    EXPECT_EQ(interp.knots(gate).values.size(), 513u);
    std::int32_t largest = 0;
    for (std::size_t i = 0; i < exact.table(gate).size(); ++i)
      largest = std::max(largest, std::abs(exact.table(gate)[i] - interp.table(gate)[i]));
    EXPECT_LE(largest, 2);
  }
  EXPECT_TRUE(interp.knots(1).starts.empty());  // 8 bits
  EXPECT_EQ(interp.table(1), exact.table(1));
}

TEST(Gru, FixedCodes) {
  const float x[] = {0.5f, -0.5f, 0.0078125f, 100.0f, -100.0f};
  std::int8_t codes[5];
  const FixedFormat format{8, true, 6, 3};
  quantize_fixed(TensorView(x, DType::f32, {5}), format, TensorView(codes, DType::i8, {5}));
  EXPECT_EQ(std::vector<int>(codes, codes + 5), (std::vector<int>{35, -29, 3, 127, -128}));  // 0.5 goes to even
  float back[5];
  dequantize_fixed(TensorView(codes, DType::i8, {5}), format, TensorView(back, DType::f32, {5}));
  EXPECT_EQ(back[0], 0.5f);
  EXPECT_EQ(back[1], -0.5f);
  EXPECT_EQ(back[2], 0.0f);
}

}  // namespace
}  // namespace qcore::test
