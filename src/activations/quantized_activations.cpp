#include "qcore/quantized_activations.h"

#include <algorithm>

#include "activations/checks.h"
#include "activations/dispatch.h"
#include "runtime/check.h"
#include "runtime/memory.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

void check_parameters(const char* op, const std::string& name, const TensorView& view, const TensorView& codes,
                      std::int64_t count) {
  check_dtype(op, name.c_str(), view, DType::f32);
  check_device(op, name.c_str(), view, codes.device, "codes");
  std::int64_t shape[TensorView::kMaxRank];
  std::copy(codes.shape, codes.shape + codes.rank, shape);
  shape[codes.rank - 1] = count;
  check_shape(op, name.c_str(), view, codes.rank, shape);
}

}  // namespace

void QuantizedActivations::check(const char* op, const char* argument) const {
  const std::string name = argument;
  QCORE_CHECK_VALUE(mode != ComputeMode::floating, op, ": ", name,
                    ".mode is floating, expected int8, int8_asym or int16");
  QCORE_CHECK_VALUE(block_size >= 1, op, ": ", name, ".block_size is ", block_size, ", expected 1 or more");
  check_dtype(op, (name + ".codes").c_str(), codes, mode == ComputeMode::int16 ? DType::i16 : DType::i8);
  QCORE_CHECK_VALUE(codes.rank >= 1, op, ": ", name, ".codes has shape [], expected [..., K]");
  const std::int64_t count = ceil_div(codes.shape[codes.rank - 1], block_size);
  check_parameters(op, name + ".scales", scales, codes, count);
  QCORE_CHECK_VALUE((offsets.rank > 0) == (mode == ComputeMode::int8_asym), op, ": ", name, ".offsets are ",
                    offsets.rank ? "given" : "missing", ", expected them for int8_asym only");
  if (offsets.rank) check_parameters(op, name + ".offsets", offsets, codes, count);
}

void QuantizedActivations::check_writable(const char* op, const char* argument, const TensorView& x) const {
  const std::string name = argument;
  check(op, argument);
  check_device(op, (name + ".codes").c_str(), codes, x.device, "x");
  check_shape(op, (name + ".codes").c_str(), codes, x.rank, x.shape);
  check_output(op, (name + ".codes").c_str(), codes);
  check_output(op, (name + ".scales").c_str(), scales);
  if (offsets.rank) check_output(op, (name + ".offsets").c_str(), offsets);
  check_disjoint(op, (name + ".scales").c_str(), scales, (name + ".codes").c_str(), codes);
  if (!offsets.rank) return;
  check_disjoint(op, (name + ".offsets").c_str(), offsets, (name + ".codes").c_str(), codes);
  check_disjoint(op, (name + ".offsets").c_str(), offsets, (name + ".scales").c_str(), scales);
}

void QuantizedActivations::check_apart(const char* op, const char* argument, const char* input,
                                       const TensorView& view) const {
  const std::string name = argument;
  check_disjoint(op, (name + ".codes").c_str(), codes, input, view);
  check_disjoint(op, (name + ".scales").c_str(), scales, input, view);
  if (offsets.rank) check_disjoint(op, (name + ".offsets").c_str(), offsets, input, view);
}

ActivationsProblem activations_problem(const QuantizedActivations& y, const TensorView& x, float scale, void* stream) {
  ActivationsProblem problem;
  problem.k = x.shape[x.rank - 1];
  problem.m = x.size() / problem.k;
  problem.block_size = std::min(y.block_size, problem.k);
  problem.mode = y.mode;
  problem.fixed_scale = scale;
  problem.codes = row_view(y.codes);
  problem.scales = row_view(y.scales);
  if (y.offsets.rank) problem.offsets = row_view(y.offsets);
  problem.device = x.device;
  problem.stream = stream;
  return problem;
}

void quantize_activations(const TensorView& x, const QuantizedActivations& y,
                          const QuantizeActivationsOptions& options) {
  const char* op = "quantize_activations";
  check_floating(op, "x", x);
  QCORE_CHECK_VALUE(x.rank >= 1, op, ": x has shape [], expected [..., K]");
  y.check_writable(op, "y", x);
  y.check_apart(op, "y", "x", x);
  check_activation_scale(op, "scale", options.scale, y.mode);
  if (x.size() == 0) return;
  ActivationsProblem problem = activations_problem(y, x, options.scale, options.stream);
  problem.x = row_view(x);
  quantize_activations_dispatch().run(problem);
}

}  // namespace qcore
