#include "gru/dispatch.h"
#include "gru/gru_arguments.h"
#include "recurrent/code_access.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {

void QuantizedGru::trace(const TensorView& x, const TensorView* h0, bool reverse, const TensorView& trace) const {
  const GruParameters& p = parameters();
  QCORE_CHECK_VALUE(x.rank == 3, "gru: x has shape ", shape_string(x), ", expected [T, B, C] with C = ", p.input_size);
  QCORE_CHECK_VALUE(!h0 || h0->rank == 2, "gru: h0 has shape ", shape_string(*h0),
                    ", expected [B, H] with H = ", p.hidden_size);
  const std::int64_t steps = x.shape[0], batch = x.shape[1];
  const std::int64_t shape[] = {steps, batch, kTraceTensors * p.hidden_size};
  check_device("gru", "x", x, kCpu, "a trace");
  check_dtype("gru", "trace", trace, DType::i32);
  check_shape("gru", "trace", trace, 3, shape);
  check_device("gru", "trace", trace, kCpu, "x");
  check_output("gru", "trace", trace);
  check_disjoint("gru", "trace", trace, "x", x);
  if (h0) check_disjoint("gru", "trace", trace, "h0", *h0);

  // The trace has the states; this is where the reference puts its results.
  std::vector<std::int16_t> states(steps * batch * p.hidden_size);
  TensorView state;
  if (h0) state = with_axis(*h0);
  GruProblem problem;
  problem.gru = &storage();
  problem.steps = steps;
  problem.batch = batch;
  problem.x = x;
  problem.y = TensorView(states.data(), code_dtype(p.formats.h), {steps, batch, p.hidden_size});
  if (h0) problem.h0 = *h0;
  problem.trace = trace;
  problem.reverse = reverse;
  problem.device = kCpu;
  RunAxes axes;
  axes.stacked = false;
  const GruStack stack = GruStack::make({*this}, 1);
  check_run_arguments(gru_shape(stack),
                      gru_arguments(stack, x, h0 ? &state : nullptr, problem.y, nullptr, nullptr, nullptr), axes);
  if (steps != 0 && batch != 0) run_gru_reference(problem);
}

}  // namespace qcore
