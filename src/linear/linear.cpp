#include "qcore/linear.h"

#include <algorithm>

#include "gemm/product_checks.h"
#include "linear/activations.h"
#include "linear/dispatch.h"
#include "linear/problem.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

void check_arguments(const TensorView& x, const QuantizedTensor& w, const TensorView* bias, const TensorView& y,
                     const FusedActivation& activation) {
  QCORE_CHECK_VALUE(w.taps() == 1, "linear: weight has ", w.taps(),
                    " taps (a convolution's), expected [N, K], or "
                    "[N, K, 1, 1]");
  QCORE_CHECK_VALUE(x.rank >= 1, "linear: x has shape [], expected [..., K] with K = ", w.features());
  QCORE_CHECK_VALUE(x.shape[x.rank - 1] == w.features(), "linear: x has shape ", shape_string(x),
                    ", expected its last dimension to be K = ", w.features(), " of the weight [", w.rows(), ", ",
                    w.features(), "]");
  std::int64_t expected[TensorView::kMaxRank];
  std::copy(x.shape, x.shape + x.rank, expected);
  expected[x.rank - 1] = w.rows();
  check_product("linear", x, w, bias, y, expected, activation);
}

void run(const LinearInput& input, const QuantizedTensor& w, const TensorView* bias, const TensorView& y,
         const LinearOptions& options) {
  check_arguments(input.x, w, bias, y, options.activation);
  if (y.size() == 0) return;

  LinearProblem problem;
  problem.m = y.size() / w.rows();
  problem.x = row_view(input.x);
  problem.y = row_view(y);
  problem.weight = &w.packed();
  if (bias) problem.bias = *bias;
  problem.compute = input.compute;
  problem.scales = input.scales;
  problem.activation = options.activation;
  problem.device = input.x.device;
  problem.stream = options.stream;
  linear_dispatch().run(problem);
}

}  // namespace

void linear(const TensorView& x, const QuantizedTensor& w, const TensorView* bias, const TensorView& y,
            const LinearOptions& options) {
  run(linear_input("linear", x, options), w, bias, y, options);
}

void linear(const QuantizedActivations& x, const QuantizedTensor& w, const TensorView* bias, const TensorView& y,
            const LinearOptions& options) {
  check_disjoint("linear", "out", y, "x.scales", x.scales);
  if (x.offsets.rank) check_disjoint("linear", "out", y, "x.offsets", x.offsets);
  run(linear_input("linear", x, w, options), w, bias, y, options);
}

}  // namespace qcore
