#include "gru/dispatch.h"
#include "gru/gru_arguments.h"
#include "recurrent/layers.h"
#include "runtime/check.h"

namespace qcore {
namespace {

// Runs QuantizedGru and GruStack alike. `stacked`: h0, last and gates have an axis of layers and directions.
void run_views(const GruStack& stack, const TensorView& x, const TensorView* h0, const TensorView& y,
               const TensorView* last, const GruRun& options, bool stacked) {
  const RunShape shape = gru_shape(stack);
  const RunArguments given = gru_arguments(stack, x, h0, y, last, options.lengths, options.gates);
  const WholeArguments whole(shape, given, options.batch_first, stacked);
  check_run_arguments(shape, whole.arguments, whole.axes);
  run_layers(shape, whole.arguments, options.reverse != stack.reverse(), options.stream, gru_dispatch(),
             [&](int layer, int direction, GruProblem& problem) -> const FixedFormat& {
               problem.gru = &stack.cell(layer, direction).storage();
               return problem.gru->parameters.formats.h;
             });
}

}  // namespace

GruStack GruStack::make(std::vector<QuantizedGru> cells, int directions, bool reverse) {
  QCORE_CHECK_VALUE(directions == 1 || directions == 2, "gru: directions is ", directions, ", expected 1 or 2");
  QCORE_CHECK_VALUE(!reverse || directions == 1, "gru: reverse is set for 2 directions, expected 1");
  QCORE_CHECK_VALUE(!cells.empty() && cells.size() % directions == 0, "gru: ", cells.size(), " cells for ", directions,
                    " directions, expected as many for each layer");
  const GruParameters& first = cells[0].parameters();
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const GruParameters& p = cells[i].parameters();
    const std::size_t layer = i / directions;
    const auto where = [&] { return message("gru: layer ", layer, ", direction ", i % directions); };
    const std::int64_t inputs = layer ? directions * first.hidden_size : first.input_size;
    QCORE_CHECK_VALUE(p.input_size == inputs && p.hidden_size == first.hidden_size, where(), " has C = ", p.input_size,
                      " and H = ", p.hidden_size, ", expected ", inputs, " and ", first.hidden_size);
    const FixedFormat& source = layer ? cells[(layer - 1) * directions].parameters().formats.h : first.formats.x;
    QCORE_CHECK_VALUE(same_numbers(p.formats.x, source), where(), " has another format of x than ",
                      layer ? "the layer before has of h" : "the first direction");
    QCORE_CHECK_VALUE(same_numbers(p.formats.h, cells[layer * directions].parameters().formats.h), where(),
                      " has another format of h than the first direction");
    QCORE_CHECK_VALUE(code_dtype(p.formats.h) == code_dtype(first.formats.h), where(), " has ", p.formats.h.bits,
                      "-bit codes of h, expected ", first.formats.h.bits, "-bit ones as in the first layer");
  }
  return GruStack(std::move(cells), directions, reverse);
}

void GruStack::run(const TensorView& x, const TensorView* h0, const TensorView& y, const TensorView* last,
                   const GruRun& options) const {
  QCORE_CHECK_VALUE(!options.reverse, "gru: reverse is set for a run of a stack, expected it in make()");
  run_views(*this, x, h0, y, last, options, true);
}

void QuantizedGru::run(const TensorView& x, const TensorView* h0, const TensorView& y, const TensorView* last,
                       const GruRun& options) const {
  run_views(GruStack::make({*this}, 1), x, h0, y, last, options, false);
}

}  // namespace qcore
