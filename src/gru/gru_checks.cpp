#include "gru/gru_checks.h"

#include <algorithm>

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

TensorView shaped(std::initializer_list<std::int64_t> shape) {
  return TensorView(static_cast<void*>(nullptr), DType::f32, shape);
}

// `as_given` makes of a view what the caller sees, for the error.
template <class AsGiven>
void check_axes(const char* argument, const TensorView& view, std::initializer_list<std::int64_t> shape,
                const AsGiven& as_given) {
  if (view.rank == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), view.shape)) return;
  const TensorView expected = as_given(shaped(shape));
  check_shape("gru", argument, as_given(view), expected.rank, expected.shape);
}

void check_codes_or_numbers(const char* argument, const TensorView& view, const FixedFormat& format, Device device) {
  QCORE_CHECK_TYPE(is_floating(view.dtype) || view.dtype == code_dtype(format), "gru: ", argument, " has dtype ",
                   name(view.dtype), ", expected ", name(code_dtype(format)), " for its ", format.bits,
                   "-bit codes, or float32, float16 or bfloat16");
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

template <class AsGiven>
void check_values(const char* argument, const TensorView& view, const FixedFormat& format, const AsGiven& as_given) {
  if (view.device != kCpu) return;
  if (is_floating(view.dtype))
    check_finite("gru", argument, as_given(view));
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

// Checks that `argument`, which the call writes, shares memory with no other argument.
void check_written(const char* argument, const TensorView& view, const GruArguments& given) {
  check_output("gru", argument, view);
  check_disjoint("gru", argument, view, "x", given.x);
  check_disjoint("gru", argument, view, "out", given.y);
  if (given.lengths) check_disjoint("gru", argument, view, "lengths", *given.lengths);
}

}  // namespace

void check_gru_arguments(const GruStack& stack, const GruArguments& given, const GruAxes& axes) {
  const GruParameters& first = stack.cell(0, 0).parameters();
  const FixedFormat &x_format = first.formats.x,
                    &last_format = stack.cell(stack.layers() - 1, 0).parameters().formats.h;
  const std::int64_t steps = given.x.shape[0], batch = given.x.shape[1], size = first.hidden_size;
  const std::int64_t cells = std::int64_t{stack.layers()} * stack.directions();
  const Device device = given.x.device;
  const auto sequence = [&](const TensorView& view) {
    return axes.one_step ? without_axis(view, 0) : axes.batch_first ? swapped(view) : view;
  };
  const auto states = [&](const TensorView& view) { return axes.stacked ? view : without_axis(view, 0); };

  QCORE_CHECK_VALUE(given.x.shape[2] == first.input_size, "gru: x has shape ", shape_string(sequence(given.x)),
                    ", expected ",
                    axes.one_step      ? "[B, C]"
                    : axes.batch_first ? "[B, T, C]"
                                       : "[T, B, C]",
                    " with C = ", first.input_size);
  check_codes_or_numbers("x", given.x, x_format, device);
  check_axes("out", given.y, {steps, batch, stack.directions() * size}, sequence);
  check_codes_or_numbers("out", given.y, last_format, device);
  check_output("gru", "out", given.y);
  check_disjoint("gru", "out", given.y, "x", given.x);
  if (given.h0) {
    check_axes("h0", *given.h0, {cells, batch, size}, states);
    check_codes_or_numbers("h0", *given.h0, first.formats.h, device);
    check_disjoint("gru", "out", given.y, "h0", *given.h0);
  }
  if (given.last) {
    check_axes("last", *given.last, {cells, batch, size}, states);
    check_codes_or_numbers("last", *given.last, first.formats.h, device);
    check_written("last", *given.last, given);
  }
  if (given.lengths) {
    check_lengths(*given.lengths, steps, batch, device);
    check_disjoint("gru", "out", given.y, "lengths", *given.lengths);
  }
  if (given.gates) {
    check_dtype("gru", "gates", *given.gates, DType::i32);
    check_axes("gates", *given.gates, {cells, steps, batch, 4 * size}, states);
    check_device("gru", "gates", *given.gates, device, "x");
    check_written("gates", *given.gates, given);
    if (given.h0) check_disjoint("gru", "gates", *given.gates, "h0", *given.h0);
    if (given.last) check_disjoint("gru", "gates", *given.gates, "last", *given.last);
  }
  check_values("x", given.x, x_format, sequence);
  if (given.h0) check_values("h0", *given.h0, first.formats.h, states);
}

}  // namespace qcore
