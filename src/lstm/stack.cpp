#include "lstm/dispatch.h"
#include "recurrent/layers.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

RunShape shape_of(const LstmStack& stack) {
  const LstmParameters& first = stack.cell(0, 0).parameters();
  const FixedFormat& y = stack.cell(stack.layers() - 1, 0).parameters().formats.h;
  return {"lstm",
          stack.layers(),
          stack.directions(),
          first.input_size,
          first.hidden_size,
          first.state_size(),
          first.formats.x,
          y};
}

RunArguments arguments_of(const LstmStack& stack, const TensorView& x, const TensorView& y, const LstmStates& states,
                          const TensorView* lengths) {
  const LstmParameters& p = stack.cell(0, 0).parameters();
  const LstmFormats& f = p.formats;
  return {x,
          y,
          {{{"h0", "h_last", &f.h, p.state_size(), states.h0, states.h_last},
            {"c0", "c_last", &f.c, p.hidden_size, states.c0, states.c_last}}},
          lengths,
          nullptr};
}

// Runs QuantizedLstm and LstmStack alike. `stacked`: states have an axis of layers and directions.
void run_views(const LstmStack& stack, const TensorView& x, const TensorView& y, const LstmStates& states,
               const LstmRun& options, bool stacked) {
  const RunShape shape = shape_of(stack);
  const WholeArguments whole(shape, arguments_of(stack, x, y, states, options.lengths), options.batch_first, stacked);
  check_run_arguments(shape, whole.arguments, whole.axes);
  run_layers(shape, whole.arguments, options.reverse != stack.reverse(), options.stream, lstm_dispatch(),
             [&](int layer, int direction, LstmProblem& problem) -> const FixedFormat& {
               problem.lstm = &stack.cell(layer, direction).storage();
               return problem.lstm->parameters.formats.h;
             });
}

}  // namespace

LstmStack LstmStack::make(std::vector<QuantizedLstm> cells, int directions, bool reverse) {
  QCORE_CHECK_VALUE(directions == 1 || directions == 2, "lstm: directions is ", directions, ", expected 1 or 2");
  QCORE_CHECK_VALUE(!reverse || directions == 1, "lstm: reverse is set for 2 directions, expected 1");
  QCORE_CHECK_VALUE(!cells.empty() && cells.size() % directions == 0, "lstm: ", cells.size(), " cells for ", directions,
                    " directions, expected as many for each layer");
  const LstmParameters& first = cells[0].parameters();
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const LstmParameters& p = cells[i].parameters();
    const std::size_t layer = i / directions;
    const LstmFormats& side = cells[layer * directions].parameters().formats;
    const auto where = [&] { return message("lstm: layer ", layer, ", direction ", i % directions); };
    const std::int64_t inputs = layer ? directions * first.state_size() : first.input_size;
    QCORE_CHECK_VALUE(p.input_size == inputs && p.hidden_size == first.hidden_size, where(), " has C = ", p.input_size,
                      " and H = ", p.hidden_size, ", expected ", inputs, " and ", first.hidden_size);
    QCORE_CHECK_VALUE(p.projection_size == first.projection_size, where(), " has projection_size ", p.projection_size,
                      ", expected ", first.projection_size, " as in the first layer");
    const FixedFormat& source = layer ? cells[(layer - 1) * directions].parameters().formats.h : first.formats.x;
    QCORE_CHECK_VALUE(same_numbers(p.formats.x, source), where(), " has another format of x than ",
                      layer ? "the layer before has of h" : "the first direction");
    QCORE_CHECK_VALUE(same_numbers(p.formats.h, side.h) && same_numbers(p.formats.c, side.c), where(),
                      " has other formats of h or c than the first direction");
    QCORE_CHECK_VALUE(code_dtype(p.formats.h) == code_dtype(first.formats.h) &&
                          code_dtype(p.formats.c) == code_dtype(first.formats.c),
                      where(), " has ", p.formats.h.bits, "-bit codes of h and ", p.formats.c.bits,
                      "-bit ones of c, expected ", first.formats.h.bits, " and ", first.formats.c.bits,
                      " bits as in the first layer");
  }
  return LstmStack(std::move(cells), directions, reverse);
}

void LstmStack::run(const TensorView& x, const TensorView& y, const LstmStates& states, const LstmRun& options) const {
  QCORE_CHECK_VALUE(!options.reverse, "lstm: reverse is set for a run of a stack, expected it in make()");
  run_views(*this, x, y, states, options, true);
}

void QuantizedLstm::run(const TensorView& x, const TensorView& y, const LstmStates& states,
                        const LstmRun& options) const {
  run_views(LstmStack::make({*this}, 1), x, y, states, options, false);
}

void QuantizedLstm::trace(const TensorView& x, const TensorView* h0, const TensorView* c0, bool reverse,
                          const TensorView& trace) const {
  const LstmParameters& p = parameters();
  QCORE_CHECK_VALUE(x.rank == 3, "lstm: x has shape ", shape_string(x), ", expected [T, B, C] with C = ", p.input_size);
  for (const TensorView* state : {h0, c0})
    QCORE_CHECK_VALUE(!state || state->rank == 2, "lstm: ", state == h0 ? "h0" : "c0", " has shape ",
                      shape_string(*state), ", expected [B, H] with H = ", p.hidden_size);
  const std::int64_t steps = x.shape[0], batch = x.shape[1];
  const std::int64_t shape[] = {steps, batch, lstm_trace_size(p)};
  check_device("lstm", "x", x, kCpu, "a trace");
  check_dtype("lstm", "trace", trace, DType::i32);
  check_shape("lstm", "trace", trace, 3, shape);
  check_device("lstm", "trace", trace, kCpu, "x");
  check_output("lstm", "trace", trace);
  check_disjoint("lstm", "trace", trace, "x", x);
  if (h0) check_disjoint("lstm", "trace", trace, "h0", *h0);
  if (c0) check_disjoint("lstm", "trace", trace, "c0", *c0);

  // The trace has the states; this is where the reference puts its results.
  std::vector<std::int16_t> states(steps * batch * p.state_size());
  const TensorView y(states.data(), code_dtype(p.formats.h), {steps, batch, p.state_size()});
  const LstmStack stack = LstmStack::make({*this}, 1);
  const RunShape run_shape = shape_of(stack);
  const WholeArguments whole(run_shape, arguments_of(stack, x, y, {h0, c0, nullptr, nullptr}, nullptr), false, false);
  check_run_arguments(run_shape, whole.arguments, whole.axes);
  LstmProblem problem;
  problem.lstm = &storage();
  problem.steps = steps;
  problem.batch = batch;
  problem.x = x;
  problem.y = y;
  if (h0) problem.h0 = *h0;
  if (c0) problem.c0 = *c0;
  problem.trace = trace;
  problem.reverse = reverse;
  problem.device = kCpu;
  if (steps != 0 && batch != 0) run_lstm_reference(problem);
}

}  // namespace qcore
