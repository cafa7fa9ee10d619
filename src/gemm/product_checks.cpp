#include "gemm/product_checks.h"

#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

constexpr const char* kAxes[] = {"H", "W"};
constexpr const char* kSides[] = {"top", "left", "bottom", "right"};
// Products of an extent, a stride and a dilation up to here stay far inside int64.
constexpr std::int64_t kMaxStep = std::int64_t{1} << 31;

}  // namespace

void check_product(const char* op, const TensorView& x, const QuantizedTensor& w, const TensorView* bias,
                   const TensorView& y, const std::int64_t* shape, const FusedActivation& activation) {
  QCORE_CHECK_VALUE(x.device == w.device(), op, ": x is on ", name(x.device), " and the weight on ", name(w.device()),
                    ", expected the same device: weight.to(...) moves it");
  check_floating(op, "out", y);
  check_device(op, "out", y, x.device, "x");
  check_shape(op, "out", y, x.rank, shape);
  check_output(op, "out", y);
  check_disjoint(op, "out", y, "x", x);
  if (bias) {
    check_floating(op, "bias", *bias);
    check_device(op, "bias", *bias, x.device, "x");
    const std::int64_t rows[] = {w.rows()};
    check_shape(op, "bias", *bias, 1, rows);
    check_disjoint(op, "out", y, "bias", *bias);
  }
  QCORE_CHECK_VALUE(activation.kind != ActivationKind::clamp || activation.lo <= activation.hi, op,
                    ": activation clamps to (", activation.lo, ", ", activation.hi, "), expected lo <= hi");
}

void check_window(const char* op, const ConvParams& window) {
  for (int axis = 0; axis < 2; ++axis) {
    QCORE_CHECK_VALUE(window.stride[axis] >= 1 && window.stride[axis] <= kMaxStep, op, ": stride along ", kAxes[axis],
                      " is ", window.stride[axis], ", expected 1 to ", kMaxStep);
    QCORE_CHECK_VALUE(window.dilation[axis] >= 1 && window.dilation[axis] <= kMaxStep, op, ": dilation along ",
                      kAxes[axis], " is ", window.dilation[axis], ", expected 1 to ", kMaxStep);
  }
  for (int side = 0; side < 4; ++side)
    QCORE_CHECK_VALUE(window.padding[side] >= 0 && window.padding[side] <= kMaxStep, op, ": padding at the ",
                      kSides[side], " is ", window.padding[side], ", expected 0 to ", kMaxStep);
  QCORE_CHECK_VALUE(window.groups >= 1, op, ": groups is ", window.groups, ", expected at least 1");
}

void window_shape(const char* op, const TensorView& x, const std::int64_t (&weight)[4], const ConvParams& window,
                  std::int64_t (&shape)[4]) {
  check_window(op, window);
  QCORE_CHECK_VALUE(x.rank == 4, op, ": x has shape ", shape_string(x), ", expected [N, Ci, H, W]");
  QCORE_CHECK_VALUE(weight[0] % window.groups == 0, op, ": the weight has Co = ", weight[0],
                    " output channels, expected a multiple of groups = ", window.groups);
  // Compared by division, because the product could overflow.
  QCORE_CHECK_VALUE(x.shape[1] % window.groups == 0 && x.shape[1] / window.groups == weight[1], op, ": x has shape ",
                    shape_string(x), ", expected Ci = ", weight[1], " * ", window.groups,
                    " channels: those of the weight, times groups");
  QCORE_CHECK_VALUE(weight[2] >= 1 && weight[3] >= 1, op, ": the weight's kernel is ", weight[2], " x ", weight[3],
                    ", expected at least 1 x 1");
  shape[0] = x.shape[0];
  shape[1] = weight[0];
  for (int axis = 0; axis < 2; ++axis) {
    const std::int64_t input = x.shape[2 + axis], kernel = weight[2 + axis];
    const std::int64_t before = window.padding[axis], after = window.padding[axis + 2];
    const std::int64_t span = window.dilation[axis] * (kernel - 1) + 1;
    const std::int64_t room = input + before + after - span;
    QCORE_CHECK_VALUE(room >= 0, op, ": along ", kAxes[axis], " the kernel spans ", span,
                      " elements and x with its padding has ", input + before + after, ", expected at least as many");
    shape[2 + axis] = room / window.stride[axis] + 1;
  }
}

}  // namespace qcore
