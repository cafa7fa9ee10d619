#include "qcore/conv2d.h"

#include "conv2d/dispatch.h"
#include "gemm/product_checks.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

numerics::WindowAxis window_axis(const TensorView& x, const QuantizedTensor& w, const ConvParams& window, int axis,
                                 std::int64_t output) {
  return {x.shape[2 + axis],     w.shape(2 + axis),    window.stride[axis],
          window.dilation[axis], window.padding[axis], output};
}

}  // namespace

void conv2d_shape(const TensorView& x, const QuantizedTensor& w, const ConvParams& window, std::int64_t (&shape)[4]) {
  QCORE_CHECK_VALUE(w.rank() == 4, "conv2d: weight has shape [", w.rows(), ", ", w.features(),
                    "] (a linear layer's), expected [Co, Ci / groups, Kh, Kw]");
  window_shape("conv2d", x, {w.shape(0), w.shape(1), w.shape(2), w.shape(3)}, window, shape);
}

void conv2d(const TensorView& x, const QuantizedTensor& w, const TensorView* bias, const TensorView& y,
            const Conv2dOptions& options) {
  check_floating("conv2d", "x", x);
  QCORE_CHECK_VALUE(options.compute != ComputeMode::int8_token,
                    "conv2d: compute is int8_token, expected float, int8, int8_asym or int16: a window has no one row");
  std::int64_t expected[4];
  conv2d_shape(x, w, options.window, expected);
  check_product("conv2d", x, w, bias, y, expected, options.activation);
  if (y.size() == 0) return;

  Conv2dProblem problem;
  problem.batch = x.shape[0];
  problem.groups = options.window.groups;
  problem.rows = window_axis(x, w, options.window, 0, y.shape[2]);
  problem.columns = window_axis(x, w, options.window, 1, y.shape[3]);
  problem.x = ImageView(x);
  problem.y = ImageView(y);
  problem.weight = &w.packed();
  if (bias) problem.bias = *bias;
  problem.compute = options.compute;
  problem.activation = options.activation;
  problem.device = x.device;
  problem.stream = options.stream;
  problem.x_view = &x;
  problem.y_view = &y;
  problem.bias_view = bias;
  problem.quantized = &w;
  conv2d_dispatch().run(problem);
}

}  // namespace qcore
