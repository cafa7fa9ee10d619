#include "qcore/lut.h"

#include <algorithm>

#include "lut/dispatch.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

bool is_same_array(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.rank == b.rank && std::equal(a.shape, a.shape + a.rank, b.shape) &&
         std::equal(a.strides, a.strides + a.rank, b.strides);
}

void check_arrays(const char* op, const TensorView& x, const TensorView& y) {
  check_floating(op, "x", x);
  check_floating(op, "out", y);
  check_device(op, "out", y, x.device, "x");
  check_shape(op, "out", y, x.rank, x.shape);
  check_output(op, "out", y);
  if (!is_same_array(x, y)) check_disjoint(op, "out", y, "x", x);
}

// Axes sorted by the strides of y, since writing is what suffers most from jumping, and then merged.
LutProblem sorted_axes(const TensorView& x, const TensorView& y, int without_axis = -1) {
  LutProblem problem;
  problem.x_dtype = x.dtype;
  problem.y_dtype = y.dtype;
  problem.x = x.data;
  problem.y = y.data;
  problem.device = x.device;
  int order[TensorView::kMaxRank], axes = 0;
  for (int axis = 0; axis < x.rank; ++axis)
    if (axis != without_axis && x.shape[axis] != 1) order[axes++] = axis;
  std::stable_sort(order, order + axes, [&](int a, int b) { return std::abs(y.strides[a]) > std::abs(y.strides[b]); });
  for (int i = 0; i < axes; ++i) {
    const int axis = order[i], last = problem.rank - 1;
    const std::int64_t extent = x.shape[axis];
    if (problem.rank > 0 && problem.x_strides[last] == x.strides[axis] * extent &&
        problem.y_strides[last] == y.strides[axis] * extent) {
      problem.shape[last] *= extent;
    } else {
      problem.shape[problem.rank++] = extent;
    }
    problem.x_strides[problem.rank - 1] = x.strides[axis];
    problem.y_strides[problem.rank - 1] = y.strides[axis];
  }
  return problem;
}

RowProblem row_problem(const TensorView& x, int axis, const TensorView& y, void* stream) {
  RowProblem problem;
  problem.rows = sorted_axes(x, y, axis);
  problem.count = x.shape[axis];
  problem.x_stride = x.strides[axis];
  problem.y_stride = y.strides[axis];
  problem.device = x.device;
  problem.stream = stream;
  return problem;
}

}  // namespace

void lut(const TensorView& x, const LutTable& table, const TensorView& y, void* stream) {
  check_arrays("lut", x, y);
  if (y.size() == 0) return;
  LutProblem problem = sorted_axes(x, y);
  problem.table = &table.storage();
  problem.stream = stream;
  lut_dispatch().run(problem);
}

void softmax(const TensorView& x, int axis, const TensorView& y, void* stream) {
  check_arrays("softmax", x, y);
  QCORE_CHECK_VALUE(x.rank > 0, "softmax: x has shape [], expected at least one axis");
  QCORE_CHECK_VALUE(axis >= -x.rank && axis < x.rank, "softmax: axis is ", axis, ", expected ", -x.rank, " to ",
                    x.rank - 1, " for x of shape ", shape_string(x));
  if (y.size() == 0) return;
  static const LutTable exp = LutTable::builtin("exp", true), reciprocal = LutTable::builtin("reciprocal", true);
  RowProblem problem = row_problem(x, axis < 0 ? axis + x.rank : axis, y, stream);
  problem.first = &exp.storage();
  problem.second = &reciprocal.storage();
  softmax_dispatch().run(problem);
}

void rms_norm(const TensorView& x, const TensorView* weight, float eps, const TensorView& y, void* stream) {
  check_arrays("rms_norm", x, y);
  QCORE_CHECK_VALUE(x.rank > 0, "rms_norm: x has shape [], expected at least one axis");
  QCORE_CHECK_VALUE(eps >= 0.0f && eps <= 1e30f, "rms_norm: eps is ", eps, ", expected a number from 0 to 1e30");
  if (weight) {
    const std::int64_t shape[] = {x.shape[x.rank - 1]};
    check_floating("rms_norm", "weight", *weight);
    check_device("rms_norm", "weight", *weight, x.device, "x");
    check_shape("rms_norm", "weight", *weight, 1, shape);
    check_disjoint("rms_norm", "out", y, "weight", *weight);
  }
  if (y.size() == 0) return;
  static const LutTable rsqrt = LutTable::builtin("rsqrt", true);
  RowProblem problem = row_problem(x, x.rank - 1, y, stream);
  problem.first = &rsqrt.storage();
  problem.eps = eps;
  if (weight) {
    problem.weight = weight->data;
    problem.weight_dtype = weight->dtype;
    problem.weight_stride = weight->strides[0];
  }
  rms_norm_dispatch().run(problem);
}

}  // namespace qcore
