#include "gru/code_access.h"
#include "gru/kernels.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

// Codes of a format, or numbers.
void check_codes(const char* argument, const TensorView& view, const FixedFormat& format, int rank,
                 const std::int64_t* shape, Device device) {
  QCORE_CHECK_TYPE(is_floating(view.dtype) || view.dtype == code_dtype(format), "gru: ", argument, " has dtype ",
                   name(view.dtype), ", expected ", name(code_dtype(format)), " of its ", format.bits,
                   "-bit codes, or float32, float16 or bfloat16");
  check_shape("gru", argument, view, rank, shape);
  check_device("gru", argument, view, device, "x");
}

// Calls f with the offset of each element of an array of two or three axes.
template <class Function>
void for_each_offset(const TensorView& view, const Function& f) {
  const std::int64_t inner = view.rank == 3 ? view.shape[2] : view.shape[1];
  const std::int64_t middle = view.rank == 3 ? view.shape[1] : view.shape[0];
  const std::int64_t outer = view.rank == 3 ? view.shape[0] : 1;
  const int first = view.rank - 2;
  for (std::int64_t a = 0; a < outer; ++a)
    for (std::int64_t b = 0; b < middle; ++b)
      for (std::int64_t c = 0; c < inner; ++c)
        f((first ? a * view.strides[0] : 0) + b * view.strides[first] + c * view.strides[first + 1]);
}

// A format of fewer bits than its dtype leaves codes that the proofs of the sums do not cover.
template <class Code>
void check_range(const char* argument, const TensorView& view, const FixedFormat& format) {
  for_each_offset(view, [&](std::int64_t at) {
    const std::int32_t code = static_cast<const Code*>(view.data)[at];
    QCORE_CHECK_VALUE(code >= format.lowest() && code <= format.highest(), "gru: ", argument, " has the code ", code,
                      ", expected ", format.lowest(), " to ", format.highest(), " of ", format.bits, " bits");
  });
}

void check_values(const char* argument, const TensorView& view, const FixedFormat& format) {
  if (view.device != kCpu) return;
  if (is_floating(view.dtype))
    check_finite("gru", argument, view);
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

}  // namespace

void QuantizedGru::run(const TensorView& x, const TensorView* h0, const TensorView& y, const TensorView* last,
                       const GruRun& options) const {
  const GruParameters& p = parameters();
  QCORE_CHECK_VALUE(x.rank == 3, "gru: x has shape ", shape_string(x), ", expected [T, B, C] with C = ", p.input_size);
  const std::int64_t steps = x.shape[0], batch = x.shape[1];
  const std::int64_t x_shape[] = {steps, batch, p.input_size}, y_shape[] = {steps, batch, p.hidden_size},
                     state_shape[] = {batch, p.hidden_size}, gates_shape[] = {steps, batch, 4 * p.hidden_size};
  check_codes("x", x, p.formats.x, 3, x_shape, x.device);
  check_codes("out", y, p.formats.h, 3, y_shape, x.device);
  check_output("gru", "out", y);
  check_disjoint("gru", "out", y, "x", x);
  if (h0) {
    check_codes("h0", *h0, p.formats.h, 2, state_shape, x.device);
    check_disjoint("gru", "out", y, "h0", *h0);
  }
  if (last) {
    check_codes("last", *last, p.formats.h, 2, state_shape, x.device);
    check_output("gru", "last", *last);
    check_disjoint("gru", "last", *last, "x", x);
    check_disjoint("gru", "last", *last, "out", y);
  }
  if (options.lengths) check_lengths(*options.lengths, steps, batch, x.device);
  if (options.gates) {
    check_dtype("gru", "gates", *options.gates, DType::i32);
    check_shape("gru", "gates", *options.gates, 3, gates_shape);
    check_device("gru", "gates", *options.gates, x.device, "x");
    check_output("gru", "gates", *options.gates);
    check_disjoint("gru", "gates", *options.gates, "x", x);
    check_disjoint("gru", "gates", *options.gates, "out", y);
  }
  check_values("x", x, p.formats.x);
  if (h0) check_values("h0", *h0, p.formats.h);
  if (batch == 0 || (steps == 0 && !last)) return;

  GruProblem problem;
  problem.gru = &storage();
  problem.steps = steps;
  problem.batch = batch;
  problem.x = x;
  problem.y = y;
  if (h0) problem.h0 = *h0;
  if (last) problem.last = *last;
  if (options.lengths) problem.lengths = *options.lengths;
  if (options.gates) problem.gates = *options.gates;
  problem.reverse = options.reverse;
  problem.device = x.device;
  problem.stream = options.stream;
  gru_table().run(problem);
}

}  // namespace qcore
