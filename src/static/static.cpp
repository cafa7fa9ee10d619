#include "qcore/static.h"

#include <algorithm>
#include <utility>

#include "gemm/product_checks.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"
#include "static/dispatch.h"

namespace qcore {
namespace {

void check_images(const StaticLayer& layer, const TensorView& x, const TensorView& y, const std::int64_t* y_shape) {
  const char* op = layer.op;
  check_dtype(op, "x", x, layer.options.x.dtype);
  QCORE_CHECK_VALUE(x.device == layer.device, op, ": x is on ", name(x.device), " and the layer on ",
                    name(layer.device), ", expected the same device: layer.to(...) moves it");
  check_dtype(op, "out", y, layer.options.y.dtype);
  check_device(op, "out", y, x.device, "x");
  check_shape(op, "out", y, x.rank, y_shape);
  check_output(op, "out", y);
  check_disjoint(op, "out", y, "x", x);
}

// The axes of x and y but the last, those of extent 1 left out, neighbors that lie evenly in both merged.
struct Rows {
  int count = 0;
  std::int64_t extent[TensorView::kMaxRank] = {}, x[TensorView::kMaxRank] = {}, y[TensorView::kMaxRank] = {};

  Rows(const TensorView& x_view, const TensorView& y_view) {
    for (int axis = 0; axis < x_view.rank - 1; ++axis) {
      const std::int64_t length = x_view.shape[axis], x_step = x_view.strides[axis], y_step = y_view.strides[axis];
      if (length == 1) continue;
      const int last = count - 1;
      if (count && x[last] == x_step * length && y[last] == y_step * length)
        extent[last] *= length;
      else
        extent[count++] = length;
      x[count - 1] = x_step;
      y[count - 1] = y_step;
    }
  }
};

}  // namespace

StaticConv2d::StaticConv2d(std::shared_ptr<const StaticLayer> layer) : layer_(std::move(layer)) {}

StaticConv2d StaticConv2d::create(const TensorView& weight, const TensorView& w_scale, const TensorView* bias,
                                  const ConvParams& window, const StaticOptions& options) {
  constexpr const char* op = "static.qconv2d";
  check_window(op, window);
  QCORE_CHECK_VALUE(weight.rank == 4 && weight.shape[2] >= 1 && weight.shape[3] >= 1, op, ": weight has shape ",
                    shape_string(weight), ", expected [Co, Ci / groups, Kh, Kw]");
  QCORE_CHECK_VALUE(weight.shape[0] % window.groups == 0, op, ": weight has Co = ", weight.shape[0],
                    " output channels, expected a multiple of groups = ", window.groups);
  return StaticConv2d(make_static_layer(op, weight, w_scale, bias, window, options));
}

void StaticConv2d::shape(const TensorView& x, std::int64_t (&y)[4]) const {
  window_shape(layer_->op, x, layer_->shape, layer_->window, y);
}

void StaticConv2d::run(const TensorView& x, const TensorView& y, void* stream) const {
  std::int64_t expected[4];
  shape(x, expected);
  check_images(*layer_, x, y, expected);
  if (y.size() == 0) return;
  const ConvParams& window = layer_->window;
  const auto axis = [&](int at) {
    return numerics::WindowAxis{x.shape[2 + at],     layer_->shape[2 + at], window.stride[at],
                                window.dilation[at], window.padding[at],    y.shape[2 + at]};
  };
  StaticProblem problem;
  problem.layer = layer_.get();
  problem.device = layer_->device;
  problem.batch = x.shape[0];
  problem.rows = axis(0);
  problem.columns = axis(1);
  problem.x = ImageView(x);
  problem.y = ImageView(y);
  problem.stream = stream;
  static_dispatch().run(problem);
}

StaticConv2d StaticConv2d::to(Device device) const { return StaticConv2d(move_static_layer(layer_, device)); }
Device StaticConv2d::device() const { return layer_->device; }

StaticLinear::StaticLinear(std::shared_ptr<const StaticLayer> layer) : layer_(std::move(layer)) {}

StaticLinear StaticLinear::create(const TensorView& weight, const TensorView& w_scale, const TensorView* bias,
                                  const StaticOptions& options) {
  constexpr const char* op = "static.qlinear";
  QCORE_CHECK_VALUE(weight.rank == 2, op, ": weight has shape ", shape_string(weight), ", expected [N, K]");
  return StaticLinear(make_static_layer(op, weight, w_scale, bias, {}, options));
}

std::int64_t StaticLinear::rows() const { return layer_->shape[0]; }
std::int64_t StaticLinear::features() const { return layer_->shape[1]; }

void StaticLinear::run(const TensorView& x, const TensorView& y, void* stream) const {
  const char* op = layer_->op;
  QCORE_CHECK_VALUE(x.rank >= 1 && x.shape[x.rank - 1] == features(), op, ": x has shape ", shape_string(x),
                    ", expected [..., K] with K = ", features());
  std::int64_t expected[TensorView::kMaxRank];
  std::copy(x.shape, x.shape + x.rank, expected);
  expected[x.rank - 1] = rows();
  check_images(*layer_, x, y, expected);
  if (y.size() == 0) return;

  // Images, their rows and columns take three axes; those before them, if any are left, are walked over here.
  const Rows rows(x, y);
  const int outer = std::max(0, rows.count - 3);
  StaticProblem problem;
  problem.layer = layer_.get();
  problem.device = layer_->device;
  problem.stream = stream;
  problem.x.dtype = x.dtype;
  problem.y.dtype = y.dtype;
  problem.x.channel = x.strides[x.rank - 1];
  problem.y.channel = y.strides[y.rank - 1];
  std::int64_t extent[3] = {1, 1, 1}, x_step[3] = {}, y_step[3] = {};
  for (int axis = outer, at = 3 - (rows.count - outer); axis < rows.count; ++axis, ++at) {
    extent[at] = rows.extent[axis];
    x_step[at] = rows.x[axis];
    y_step[at] = rows.y[axis];
  }
  problem.batch = extent[0];
  problem.rows = {extent[1], 1, 1, 1, 0, extent[1]};
  problem.columns = {extent[2], 1, 1, 1, 0, extent[2]};
  problem.x.image = x_step[0], problem.x.row = x_step[1], problem.x.column = x_step[2];
  problem.y.image = y_step[0], problem.y.row = y_step[1], problem.y.column = y_step[2];
  std::int64_t calls = 1;
  for (int axis = 0; axis < outer; ++axis) calls *= rows.extent[axis];
  for (std::int64_t call = 0; call < calls; ++call) {
    std::int64_t x_at = 0, y_at = 0, rest = call;
    for (int axis = outer - 1; axis >= 0; --axis) {
      x_at += rest % rows.extent[axis] * rows.x[axis];
      y_at += rest % rows.extent[axis] * rows.y[axis];
      rest /= rows.extent[axis];
    }
    problem.x.data = static_cast<const char*>(x.data) + x_at;
    problem.y.data = static_cast<const char*>(y.data) + y_at;
    static_dispatch().run(problem);
  }
}

StaticLinear StaticLinear::to(Device device) const { return StaticLinear(move_static_layer(layer_, device)); }
Device StaticLinear::device() const { return layer_->device; }

}  // namespace qcore
