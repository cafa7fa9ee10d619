// The decoder's operators that end with codes, on the machine, against the two operators' references: the same bits.

#include <limits>

#include "activations/dispatch.h"
#include "decoder/decoder_arrays.h"

namespace qcore {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

struct Codes {
  Array codes, scales;
  std::int64_t rows, count, block;
  float fixed;

  Codes(std::int64_t rows_, std::int64_t count_, std::int64_t block_, float fixed_, std::int64_t gap)
      : codes(DType::i8, {rows_, count_}, gap),
        scales(DType::f32, {rows_, (count_ + block_ - 1) / block_}, 1, gap ? 2 : 1),
        rows(rows_),
        count(count_),
        block(block_),
        fixed(fixed_) {}

  ActivationsProblem problem(bool device) {
    ActivationsProblem p;
    p.m = rows;
    p.k = count;
    p.block_size = block;
    p.fixed_scale = fixed;
    p.codes = rows_of(device ? codes.device() : codes.cpu());
    p.scales = rows_of(device ? scales.device() : scales.cpu());
    p.device = device ? kCuda : kCpu;
    return p;
  }
  void expect(Array& x, const std::string& what) {
    ActivationsProblem p = problem(false);
    p.x = rows_of(x.cpu());
    run_quantize_activations_reference(p);
    codes.expect_equal(what + ", codes");
    scales.expect_equal(what + ", scales");
  }
};

std::string describe(DType dtype, const Codes& codes) {
  return std::string(name(dtype)) + ", count " + std::to_string(codes.count) + ", blocks of " +
         std::to_string(codes.block);
}

void check_norm(DType dtype, std::int64_t rows, std::int64_t count, std::int64_t block, bool extras, float fixed) {
  Random random(static_cast<unsigned>(rows * 1000 + count));
  const std::int64_t gap = extras ? 16 : 0;
  Array x(dtype, {rows, count}, gap), y(dtype, {rows, count}), residual(dtype, {rows, count}, gap);
  Array weight(extras ? dtype : DType::f32, {count});
  x.fill(random), residual.fill(random), weight.fill(random);
  if (rows > 2) x.set_element(count + gap + 3, kNaN);
  Codes codes(rows, count, block, fixed, gap);
  const auto problem = [&](bool device) {
    const auto view = [&](Array& array) { return device ? array.device() : array.cpu(); };
    NormProblem p;
    p.x = rows_of(view(x));
    if (extras) p.residual = rows_of(view(residual));
    p.weight = view(weight);
    p.rows = rows;
    p.count = count;
    p.eps = 1e-5f;
    p.offset = extras ? 1.0f : 0.0f;
    p.round_normalized = extras;
    p.device = device ? kCuda : kCpu;
    return p;
  };
  const NormProblem on_device = problem(true);
  ASSERT_TRUE(run_quantizing_cuda(on_device, codes.problem(true))) << describe(dtype, codes);
  NormProblem first = problem(false);
  first.y = rows_of(y.cpu());
  run_norm_reference(first);
  codes.expect(y, describe(dtype, codes));
  if (extras) residual.expect_equal(describe(dtype, codes) + ", residual");
}

TEST(DecoderCuda, RmsNormQuantize) {
  for (const DType dtype : kFloats)
    for (const bool extras : {false, true})
      for (const float fixed : {0.0f, 0.01f}) {
        check_norm(dtype, 5, 64, 32, extras, fixed);
        check_norm(dtype, 18, 512, 512, extras, fixed);
        check_norm(dtype, 3, 1024, 128, extras, fixed);
        check_norm(dtype, 2, 4096, 4096, extras, fixed);
        check_norm(dtype, 3, 2064, 16, extras, fixed);
        check_norm(dtype, 1, 1280, 256, extras, fixed);
        check_norm(dtype, 3, 40, 8, extras, fixed);
        check_norm(dtype, 1, 12264, 12264, extras, fixed);
      }
}

void check_gate(DType dtype, GateActivation activation, std::int64_t rows, std::int64_t count, std::int64_t block,
                float fixed) {
  Random random(static_cast<unsigned>(rows + count));
  const std::int64_t gap = fixed != 0.0f ? 16 : 0;
  Array x(dtype, {rows, 2 * count}, gap), y(dtype, {rows, count});
  x.fill(random, 4.0f);
  const float special[] = {0.0f, -0.0f, 1e4f, -1e4f, kInfinity, -kInfinity, kNaN, -33.0f};
  for (std::int64_t i = 0; rows > 2 && i < 8; ++i) x.set_element(i, special[i]);
  Codes codes(rows, count, block, fixed, gap);
  const auto problem = [&](bool device) {
    GateProblem p;
    p.x = rows_of(device ? x.device() : x.cpu());
    p.rows = rows;
    p.count = count;
    p.activation = activation;
    p.device = device ? kCuda : kCpu;
    return p;
  };
  const GateProblem on_device = problem(true);
  ASSERT_TRUE(run_quantizing_cuda(on_device, codes.problem(true))) << describe(dtype, codes);
  GateProblem first = problem(false);
  first.y = rows_of(y.cpu());
  run_gate_reference(first);
  codes.expect(y, describe(dtype, codes) + ", activation " + std::to_string(static_cast<int>(activation)));
}

TEST(DecoderCuda, GatedActivationQuantize) {
  for (const GateActivation activation :
       {GateActivation::silu, GateActivation::gelu, GateActivation::gelu_tanh, GateActivation::relu})
    for (const DType dtype : kFloats)
      for (const float fixed : {0.0f, 0.05f}) {
        check_gate(dtype, activation, 3, 1024, 128, fixed);
        check_gate(dtype, activation, 2, 2080, 32, fixed);
        check_gate(dtype, activation, 3, 48, 8, fixed);
        check_gate(dtype, activation, 3, 1032, 1032, fixed);
        check_gate(dtype, activation, 3, 10240, 10240, fixed);
      }
}

// What the kernels leave to the two operators.
TEST(DecoderCuda, QuantizeRefuses) {
  Array x(DType::f16, {2, 192});
  NormProblem norm;
  norm.x = rows_of(x.device());
  norm.rows = 2, norm.count = 192, norm.device = kCuda;
  GateProblem gate;
  gate.x = norm.x;
  gate.rows = 2, gate.count = 96, gate.device = kCuda;
  for (const std::int64_t block : {7, 24, 512}) {
    Codes codes(2, 192, std::min<std::int64_t>(block, 192), 0.0f, 0),
        half(2, 96, std::min<std::int64_t>(block, 96), 0.0f, 0);
    EXPECT_EQ(run_quantizing_cuda(norm, codes.problem(true)), block == 512) << block;
    EXPECT_EQ(run_quantizing_cuda(gate, half.problem(true)), block == 512) << block;
    ActivationsProblem asymmetric = codes.problem(true);
    asymmetric.mode = ComputeMode::int8_asym;
    EXPECT_FALSE(run_quantizing_cuda(norm, asymmetric));
  }
  Codes codes(2, 192, 64, 0.0f, 0);
  norm.x.data = static_cast<const char*>(norm.x.data) + 2;  // not a multiple of 16
  EXPECT_FALSE(run_quantizing_cuda(norm, codes.problem(true)));

  // Long rows with one scale each go to the two operators until there are 1.5 of them per multiprocessor, here of 2.
  Array wide(DType::f16, {3, 2 * 4104});
  gate.x = rows_of(wide.device());
  gate.count = 4104;
  for (const std::int64_t rows : {2, 3}) {
    gate.rows = rows;
    EXPECT_EQ(run_quantizing_cuda(gate, Codes(rows, 4104, 4104, 0.0f, 0).problem(true)), rows == 3) << rows;
  }
}

}  // namespace
}  // namespace qcore
