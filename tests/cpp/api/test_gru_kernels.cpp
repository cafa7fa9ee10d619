#include "fixed_codes.h"
#include "random_gru.h"
#include "reference_results.h"
#include "support.h"

// Every kernel of the fixed-point GRU against the reference.
namespace qcore::test {
namespace {

struct Run {
  Codes y, last;
  Guarded<std::int32_t> gates;
};

struct Sizes {
  std::int64_t steps, batch, c, h;
};

Run run(const QuantizedGru& gru, const Sizes& s, Codes& x, Codes& h0, const std::vector<std::int32_t>& lengths,
        bool reverse, const std::string& kernel) {
  const FixedFormat& h_format = gru.parameters().formats.h;
  Run result{Codes(s.steps * s.batch * s.h, h_format), Codes(s.batch * s.h, h_format),
             Guarded<std::int32_t>(s.steps * s.batch * 4 * s.h)};
  const TensorView h0_view = h0.view({s.batch, s.h}), last_view = result.last.view({s.batch, s.h}),
                   lengths_view(lengths.data(), DType::i32, {s.batch}),
                   gates_view(static_cast<void*>(result.gates.data()), DType::i32, {s.steps, s.batch, 4 * s.h});
  GruRun options;
  options.reverse = reverse;
  if (!lengths.empty()) options.lengths = &lengths_view;
  options.gates = &gates_view;
  const ForceKernel force("gru", kernel);
  gru.run(x.view({s.steps, s.batch, s.c}), &h0_view, result.y.view({s.steps, s.batch, s.h}), &last_view, options);
  EXPECT_EQ(last_kernel("gru"), kernel);
  return result;
}

// Makes the same layer with the reset gate before the product of the state.
QuantizedGru with_reset_state(const QuantizedGru& gru) {
  GruParameters p = gru.parameters();
  p.linear_before_reset = false;
  p.formats.rrh = p.formats.h;
  p.formats.rrh.bits = p.weight_bits;  // other planes of bytes than h
  p.formats.rrh.zero_point = 1;
  return QuantizedGru::make(p);
}

// Returns whether a kernel takes the layer.
bool takes(const QuantizedGru& gru, const Sizes& s, Codes& x, Codes& h0, const std::string& kernel) {
  if (gru.parameters().linear_before_reset) return true;
  try {
    run(gru, s, x, h0, {}, false, kernel);
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("linear_before_reset is 0 with numbers of more than 32 bits"),
              std::string::npos);
    return false;
  }
  return true;
}

void check(Random& random, const Sizes& s, const GruWidths& widths, const QuantizedGru& gru) {
  const GruFormats& f = gru.parameters().formats;
  Codes x(s.steps * s.batch * s.c, f.x), h0(s.batch * s.h, f.h);
  x.fill(random, f.x);
  h0.fill(random, f.h);
  std::vector<std::int32_t> lengths;
  if (random.below(2))
    for (std::int64_t b = 0; b < s.batch; ++b) lengths.push_back(random.below(static_cast<int>(s.steps) + 1));
  const bool reverse = random.below(2) > 0;
  Run expected = run(gru, s, x, h0, lengths, reverse, "reference");
  compare_with_unoptimized(expected.y.bytes());
  compare_with_unoptimized(expected.last.bytes());
  for (const KernelInfo& kernel : kernels("gru")) {
    if (!kernel.available || kernel.device != "cpu" || kernel.name == "reference") continue;
    if (!takes(gru, s, x, h0, kernel.name)) continue;
    SCOPED_TRACE(kernel.name + ": T " + std::to_string(s.steps) + ", B " + std::to_string(s.batch) + ", C " +
                 std::to_string(s.c) + ", H " + std::to_string(s.h) + ", weights " + std::to_string(widths.weights) +
                 ", x " + std::to_string(widths.x) + ", h " + std::to_string(widths.h));
    Run got = run(gru, s, x, h0, lengths, reverse, kernel.name);
    EXPECT_TRUE(got.y == expected.y);
    EXPECT_TRUE(got.last == expected.last);
    EXPECT_TRUE(got.gates.guards_intact());
    EXPECT_EQ(std::memcmp(got.gates.data(), expected.gates.data(), got.gates.size() * sizeof(std::int32_t)), 0);
  }
}

void check(Random& random, const Sizes& s, const GruWidths& widths, bool extreme) {
  const auto pipeline = random.below(2) ? GruPipeline::staged : GruPipeline::fused;
  const auto rounding = random.below(2) ? ShiftRounding::half_away : ShiftRounding::half_even;
  const QuantizedGru gru = random_gru(random, s.c, s.h, widths, pipeline, rounding, extreme);
  check(random, s, widths, gru);
  // Half of the small layers are enough; the large ones are those that threads share.
  if (s.h > 70 || random.below(2)) check(random, s, widths, with_reset_state(gru));
}

TEST(GruKernels, EveryKernelGivesTheReferencesBits) {
  Random random(5);
  const int before = get_num_threads();
  constexpr GruWidths kPresets[] = {{8, 8, 8}, {16, 16, 16}, {8, 16, 16}, {16, 8, 8}, {4, 8, 16}};
  // Every number of rows that tiles take at once, and thirds of channels.
  for (int batch = 1; batch <= 17; ++batch) {
    set_num_threads(1 + batch % 3);
    check(random, {3, batch, 5 + batch, 3 * batch}, kPresets[batch % 5], false);
  }
  for (int i = 0; i < 40; ++i) {
    const GruWidths widths{between(random, 2, 16), between(random, 2, 16), between(random, 2, 16)};
    check(random, {between(random, 0, 4), between(random, 1, 9), between(random, 1, 70), between(random, 1, 70)},
          widths, i % 4 == 0);
  }
  // Enough work for several threads, which share rows or channels.
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    check(random, {4, 2, 96, 256}, kPresets[0], false);
    check(random, {3, 20, 64, 200}, kPresets[1], false);
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace qcore::test
