#include "qcore/linear.h"

#include <cmath>

#include "linear/dispatch.h"
#include "linear/problem.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

void check_activation(const FusedActivation& activation) {
  if (activation.kind != ActivationKind::clamp) return;
  QCORE_CHECK_VALUE(activation.lo <= activation.hi, "linear: activation clamps to (", activation.lo, ", ",
                    activation.hi, "), expected lo <= hi");
}

void check_arguments(const TensorView& x, const QuantizedTensor& w, const TensorView* bias, const TensorView& y) {
  check_floating("linear", "x", x);
  QCORE_CHECK_VALUE(w.taps() == 1, "linear: weight has ", w.taps(),
                    " taps (a convolution's), expected [N, K], or "
                    "[N, K, 1, 1]");
  QCORE_CHECK_VALUE(x.rank >= 1, "linear: x has shape [], expected [..., K] with K = ", w.features());
  QCORE_CHECK_VALUE(x.shape[x.rank - 1] == w.features(), "linear: x has shape ", shape_string(x),
                    ", expected its last dimension to be K = ", w.features(), " of the weight [", w.rows(), ", ",
                    w.features(), "]");
  QCORE_CHECK_VALUE(x.device == w.device(), "linear: x is on ", name(x.device), " and the weight on ", name(w.device()),
                    ", expected the same device: weight.to(...) moves it");
  check_floating("linear", "out", y);
  check_device("linear", "out", y, x.device, "x");
  std::int64_t expected[TensorView::kMaxRank];
  std::copy(x.shape, x.shape + x.rank, expected);
  expected[x.rank - 1] = w.rows();
  check_shape("linear", "out", y, x.rank, expected);
  check_output("linear", "out", y);
  check_disjoint("linear", "out", y, "x", x);
  if (bias) {
    check_floating("linear", "bias", *bias);
    check_device("linear", "bias", *bias, x.device, "x");
    const std::int64_t rows[] = {w.rows()};
    check_shape("linear", "bias", *bias, 1, rows);
    check_disjoint("linear", "out", y, "bias", *bias);
  }
}

}  // namespace

void linear(const TensorView& x, const QuantizedTensor& w, const TensorView* bias, const TensorView& y,
            const LinearOptions& options) {
  check_arguments(x, w, bias, y);
  check_activation(options.activation);
  if (y.size() == 0) return;

  LinearProblem problem;
  problem.m = y.size() / w.rows();
  problem.x = row_view(x);
  problem.y = row_view(y);
  problem.weight = &w.packed();
  if (bias) problem.bias = *bias;
  problem.compute = options.compute;
  problem.activation = options.activation;
  problem.device = x.device;
  problem.stream = options.stream;
  linear_dispatch().run(problem);
}

}  // namespace qcore
