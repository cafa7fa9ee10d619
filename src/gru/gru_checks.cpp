#include "gru/gru_checks.h"

#include "gru/code_access.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

// A view without its axis of size 1, for an error that shows the caller's shape.
TensorView without_axis(const TensorView& view, int axis) {
  TensorView less = view;
  --less.rank;
  for (int i = axis; i < less.rank; ++i) less.shape[i] = view.shape[i + 1], less.strides[i] = view.strides[i + 1];
  return less;
}

TensorView swapped(const TensorView& view) {
  TensorView other = view;
  std::swap(other.shape[0], other.shape[1]);
  std::swap(other.strides[0], other.strides[1]);
  return other;
}

// x or y as the caller gave it.
TensorView as_given(const TensorView& view, const GruAxes& axes) {
  return axes.one_step ? without_axis(view, 0) : axes.batch_first ? swapped(view) : view;
}

void check_like_x(const char* argument, const TensorView& view, const FixedFormat& format, const TensorView& expected,
                  Device device) {
  QCORE_CHECK_TYPE(is_floating(view.dtype) || view.dtype == code_dtype(format), "gru: ", argument, " has dtype ",
                   name(view.dtype), ", expected ", name(code_dtype(format)), " for its ", format.bits,
                   "-bit codes, or float32, float16 or bfloat16");
  check_shape("gru", argument, view, expected.rank, expected.shape);
  check_device("gru", argument, view, device, "x");
}

// A format of fewer bits than its dtype leaves codes that the proofs of the sums do not cover.
template <class Code>
void check_range(const char* argument, const TensorView& view, const FixedFormat& format) {
  const auto* codes = static_cast<const Code*>(view.data);
  const std::int64_t *shape = view.shape, *strides = view.strides;
  for (std::int64_t a = 0; a < shape[0]; ++a)
    for (std::int64_t b = 0; b < shape[1]; ++b)
      for (std::int64_t c = 0; c < shape[2]; ++c) {
        const std::int32_t code = codes[a * strides[0] + b * strides[1] + c * strides[2]];
        QCORE_CHECK_VALUE(code >= format.lowest() && code <= format.highest(), "gru: ", argument, " has the code ",
                          code, ", expected ", format.lowest(), " to ", format.highest(), " of ", format.bits, " bits");
      }
}

void check_values(const char* argument, const TensorView& view, const FixedFormat& format, const TensorView& given) {
  if (view.device != kCpu) return;
  if (is_floating(view.dtype))
    check_finite("gru", argument, given);
  else if (format.bits != 8 && view.dtype == DType::i8)
    check_range<std::int8_t>(argument, view, format);
  else if (format.bits != 16 && view.dtype == DType::i16)
    check_range<std::int16_t>(argument, view, format);
}

void check_lengths(const TensorView& lengths, std::int64_t steps, std::int64_t batch, Device device) {
  const std::int64_t shape[] = {batch};
  check_dtype("gru", "lengths", lengths, DType::i32);
  check_shape("gru", "lengths", lengths, 1, shape);
  check_device("gru", "lengths", lengths, device, "x");
  if (device != kCpu) return;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int32_t length = static_cast<const std::int32_t*>(lengths.data)[b * lengths.strides[0]];
    QCORE_CHECK_VALUE(length >= 0 && length <= steps, "gru: lengths[", b, "] is ", length,
                      ", expected 0 to T = ", steps);
  }
}

// What `argument`, written next to out, shares memory with must be nothing.
void check_written(const char* argument, const TensorView& view, const GruArguments& given) {
  check_output("gru", argument, view);
  check_disjoint("gru", argument, view, "x", given.x);
  check_disjoint("gru", argument, view, "out", given.y);
  if (given.lengths) check_disjoint("gru", argument, view, "lengths", *given.lengths);
}

TensorView shaped(std::initializer_list<std::int64_t> shape) {
  return TensorView(static_cast<void*>(nullptr), DType::f32, shape);
}

}  // namespace

void check_gru_arguments(const GruStack& stack, const GruArguments& given, const GruAxes& axes) {
  const GruParameters& first = stack.cell(0, 0).parameters();
  const FixedFormat &x_format = first.formats.x,
                    &last_format = stack.cell(stack.layers() - 1, 0).parameters().formats.h;
  const std::int64_t steps = given.x.shape[0], batch = given.x.shape[1], size = first.hidden_size;
  const std::int64_t cells = std::int64_t{stack.layers()} * stack.directions();
  const Device device = given.x.device;
  const TensorView y_expected = as_given(shaped({steps, batch, stack.directions() * size}), axes);
  const TensorView states = shaped({cells, batch, size});
  const auto shown = [&](const TensorView& view) { return axes.stacked ? view : without_axis(view, 0); };

  QCORE_CHECK_VALUE(given.x.shape[2] == first.input_size, "gru: x has shape ", shape_string(as_given(given.x, axes)),
                    ", expected ",
                    axes.one_step      ? "[B, C]"
                    : axes.batch_first ? "[B, T, C]"
                                       : "[T, B, C]",
                    " with C = ", first.input_size);
  check_like_x("x", as_given(given.x, axes), x_format, as_given(given.x, axes), device);
  check_like_x("out", as_given(given.y, axes), last_format, y_expected, device);
  check_output("gru", "out", given.y);
  check_disjoint("gru", "out", given.y, "x", given.x);
  if (given.h0) {
    check_like_x("h0", shown(*given.h0), first.formats.h, shown(states), device);
    check_disjoint("gru", "out", given.y, "h0", *given.h0);
  }
  if (given.last) {
    check_like_x("last", shown(*given.last), first.formats.h, shown(states), device);
    check_written("last", *given.last, given);
  }
  if (given.lengths) {
    check_lengths(*given.lengths, steps, batch, device);
    check_disjoint("gru", "out", given.y, "lengths", *given.lengths);
  }
  if (given.gates) {
    const TensorView expected_gates = shown(shaped({cells, steps, batch, 4 * size}));
    check_dtype("gru", "gates", *given.gates, DType::i32);
    check_shape("gru", "gates", shown(*given.gates), expected_gates.rank, expected_gates.shape);
    check_device("gru", "gates", *given.gates, device, "x");
    check_written("gates", *given.gates, given);
    if (given.h0) check_disjoint("gru", "gates", *given.gates, "h0", *given.h0);
    if (given.last) check_disjoint("gru", "gates", *given.gates, "last", *given.last);
  }
  check_values("x", given.x, x_format, as_given(given.x, axes));
  if (given.h0) check_values("h0", *given.h0, first.formats.h, shown(*given.h0));
}

}  // namespace qcore
