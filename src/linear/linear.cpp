#include "qcore/linear.h"

#include <algorithm>

#include "gemm/product_checks.h"
#include "linear/dispatch.h"
#include "linear/problem.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

void check_arguments(const TensorView& x, const QuantizedTensor& w, const TensorView* bias, const TensorView& y,
                     const FusedActivation& activation) {
  check_floating("linear", "x", x);
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

}  // namespace

void linear(const TensorView& x, const QuantizedTensor& w, const TensorView* bias, const TensorView& y,
            const LinearOptions& options) {
  check_arguments(x, w, bias, y, options.activation);
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
