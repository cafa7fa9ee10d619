#include "recurrent/arguments.h"

#include <algorithm>

#include "recurrent/code_access.h"
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
void check_axes(const char* op, const char* argument, const TensorView& view, std::initializer_list<std::int64_t> shape,
                const AsGiven& as_given) {
  if (view.rank == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), view.shape)) return;
  const TensorView expected = as_given(shaped(shape));
  check_shape(op, argument, as_given(view), expected.rank, expected.shape);
}

void check_codes_or_numbers(const char* op, const char* argument, const TensorView& view, const FixedFormat& format,
                            Device device) {
  QCORE_CHECK_TYPE(is_floating(view.dtype) || view.dtype == code_dtype(format), op, ": ", argument, " has dtype ",
                   name(view.dtype), ", expected ", name(code_dtype(format)), " for its ", format.bits,
                   "-bit codes, or float32, float16 or bfloat16");
  check_device(op, argument, view, device, "x");
}

// A format of fewer bits than its dtype leaves codes that the proofs of the sums do not cover.
template <class Code>
void check_range(const char* op, const char* argument, const TensorView& view, const FixedFormat& format) {
  const auto* codes = static_cast<const Code*>(view.data);
  const std::int64_t *shape = view.shape, *strides = view.strides;
  for (std::int64_t a = 0; a < shape[0]; ++a)
    for (std::int64_t b = 0; b < shape[1]; ++b)
      for (std::int64_t c = 0; c < shape[2]; ++c) {
        const std::int32_t code = codes[a * strides[0] + b * strides[1] + c * strides[2]];
        QCORE_CHECK_VALUE(code >= format.lowest() && code <= format.highest(), op, ": ", argument, " has the code ",
                          code, ", expected ", format.lowest(), " to ", format.highest(), " of ", format.bits, " bits");
      }
}

template <class AsGiven>
void check_values(const char* op, const char* argument, const TensorView& view, const FixedFormat& format,
                  const AsGiven& as_given) {
  if (view.device != kCpu) return;
  if (is_floating(view.dtype))
    check_finite(op, argument, as_given(view));
  else if (format.bits != 8 && view.dtype == DType::i8)
    check_range<std::int8_t>(op, argument, view, format);
  else if (format.bits != 16 && view.dtype == DType::i16)
    check_range<std::int16_t>(op, argument, view, format);
}

void check_lengths(const char* op, const TensorView& lengths, std::int64_t steps, std::int64_t batch, Device device) {
  const std::int64_t shape[] = {batch};
  check_dtype(op, "lengths", lengths, DType::i32);
  check_shape(op, "lengths", lengths, 1, shape);
  check_device(op, "lengths", lengths, device, "x");
  if (device != kCpu) return;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int32_t length = static_cast<const std::int32_t*>(lengths.data)[b * lengths.strides[0]];
    QCORE_CHECK_VALUE(length >= 0 && length <= steps, op, ": lengths[", b, "] is ", length,
                      ", expected 0 to T = ", steps);
  }
}

}  // namespace

void check_run_arguments(const RunShape& shape, const RunArguments& given, const RunAxes& axes) {
  const char* const op = shape.op;
  const std::int64_t steps = given.x.shape[0], batch = given.x.shape[1], size = shape.hidden_size;
  const std::int64_t cells = std::int64_t{shape.layers} * shape.directions;
  const Device device = given.x.device;
  const auto sequence = [&](const TensorView& view) {
    return axes.one_step ? without_axis(view, 0) : axes.batch_first ? swapped(view) : view;
  };
  const auto stacked = [&](const TensorView& view) { return axes.stacked ? view : without_axis(view, 0); };

  QCORE_CHECK_VALUE(given.x.shape[2] == shape.input_size, op, ": x has shape ", shape_string(sequence(given.x)),
                    ", expected ",
                    axes.one_step      ? "[B, C]"
                    : axes.batch_first ? "[B, T, C]"
                                       : "[T, B, C]",
                    " with C = ", shape.input_size);
  check_codes_or_numbers(op, "x", given.x, shape.x, device);
  check_axes(op, "out", given.y, {steps, batch, shape.directions * shape.state_size}, sequence);
  check_codes_or_numbers(op, "out", given.y, shape.y, device);
  check_output(op, "out", given.y);
  check_disjoint(op, "out", given.y, "x", given.x);
  // `argument` is written: nothing that the run reads or writes otherwise lies there. A state may take its own initial
  // value's place.
  const auto check_written = [&](const char* argument, const TensorView& view) {
    check_output(op, argument, view);
    check_disjoint(op, argument, view, "x", given.x);
    check_disjoint(op, argument, view, "out", given.y);
    if (given.lengths) check_disjoint(op, argument, view, "lengths", *given.lengths);
  };
  for (const StateArgument& state : given.states) {
    if (state.initial) {
      check_axes(op, state.initial_name, *state.initial, {cells, batch, state.size}, stacked);
      check_codes_or_numbers(op, state.initial_name, *state.initial, *state.format, device);
      check_disjoint(op, "out", given.y, state.initial_name, *state.initial);
    }
    if (state.last) {
      check_axes(op, state.last_name, *state.last, {cells, batch, state.size}, stacked);
      check_codes_or_numbers(op, state.last_name, *state.last, *state.format, device);
      check_written(state.last_name, *state.last);
      for (const StateArgument& other : given.states) {
        if (&other == &state) continue;
        if (other.initial) check_disjoint(op, state.last_name, *state.last, other.initial_name, *other.initial);
        if (other.last) check_disjoint(op, state.last_name, *state.last, other.last_name, *other.last);
      }
    }
  }
  if (given.lengths) {
    check_lengths(op, *given.lengths, steps, batch, device);
    check_disjoint(op, "out", given.y, "lengths", *given.lengths);
  }
  if (given.gates) {
    check_dtype(op, "gates", *given.gates, DType::i32);
    check_axes(op, "gates", *given.gates, {cells, steps, batch, shape.gate_tensors * size}, stacked);
    check_device(op, "gates", *given.gates, device, "x");
    check_written("gates", *given.gates);
    for (const StateArgument& state : given.states) {
      if (state.initial) check_disjoint(op, "gates", *given.gates, state.initial_name, *state.initial);
      if (state.last) check_disjoint(op, "gates", *given.gates, state.last_name, *state.last);
    }
  }
  check_values(op, "x", given.x, shape.x, sequence);
  for (const StateArgument& state : given.states)
    if (state.initial) check_values(op, state.initial_name, *state.initial, *state.format, stacked);
}

WholeArguments::WholeArguments(const RunShape& shape, const RunArguments& given, bool batch_first, bool stacked)
    : arguments(given) {
  axes.batch_first = batch_first;
  axes.one_step = given.x.rank == 2 && shape.directions == 1 && !given.lengths && !given.gates;
  axes.stacked = stacked;
  QCORE_CHECK_VALUE(given.x.rank == 3 || axes.one_step, shape.op, ": x has shape ", shape_string(given.x),
                    ", expected ", batch_first ? "[B, T, C]" : "[T, B, C]", " with C = ", shape.input_size);
  if (axes.one_step) {
    arguments.x = with_axis(given.x);
    arguments.y = with_axis(given.y);
  } else if (batch_first) {
    swap_steps_and_rows(arguments.x);
    swap_steps_and_rows(arguments.y);
  }
  if (stacked) return;
  const TensorView** const all[] = {&arguments.states[0].initial, &arguments.states[0].last,
                                    &arguments.states[1].initial, &arguments.states[1].last, &arguments.gates};
  for (int i = 0; i < 5; ++i)
    if (*all[i]) {
      views_[i] = with_axis(**all[i]);
      *all[i] = &views_[i];
    }
}

}  // namespace qcore
