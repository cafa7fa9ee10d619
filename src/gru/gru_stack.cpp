#include "gru/code_access.h"
#include "gru/dispatch.h"
#include "gru/gru_checks.h"
#include "runtime/check.h"
#include "runtime/device.h"

namespace qcore {
namespace {

bool same_numbers(const FixedFormat& a, const FixedFormat& b) {
  return a.bits == b.bits && a.exponent == b.exponent && a.zero_point == b.zero_point;
}

// Without its first axis, at an index of it; a null pointer gives an empty view.
TensorView slice(const TensorView* view, std::int64_t index) {
  if (!view) return {};
  TensorView part = *view;
  part.data = static_cast<char*>(view->data) + index * view->strides[0] * item_size(view->dtype);
  --part.rank;
  for (int axis = 0; axis < part.rank; ++axis) part.shape[axis] = view->shape[axis + 1];
  for (int axis = 0; axis < part.rank; ++axis) part.strides[axis] = view->strides[axis + 1];
  return part;
}

// Features [first, first + count).
TensorView columns(const TensorView& view, std::int64_t first, std::int64_t count) {
  TensorView part = view;
  part.data = static_cast<char*>(view.data) + first * view.strides[2] * item_size(view.dtype);
  part.shape[2] = count;
  return part;
}

TensorView with_axis(const TensorView& view) {
  TensorView more = view;
  ++more.rank;
  more.shape[0] = 1;
  more.strides[0] = 0;
  for (int axis = 1; axis < more.rank; ++axis) more.shape[axis] = view.shape[axis - 1];
  for (int axis = 1; axis < more.rank; ++axis) more.strides[axis] = view.strides[axis - 1];
  return more;
}

void swap_steps_and_rows(TensorView& view) {
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.strides[0], view.strides[1]);
}

void run_layers(const GruStack& stack, const GruArguments& given, bool reverse, void* stream) {
  const std::int64_t steps = given.x.shape[0], batch = given.x.shape[1];
  const int layers = stack.layers(), directions = stack.directions();
  const std::int64_t size = stack.cell(0, 0).parameters().hidden_size;
  if (batch == 0 || (steps == 0 && !given.last)) return;

  GruProblem problem;
  problem.steps = steps;
  problem.batch = batch;
  problem.device = given.x.device;
  problem.stream = stream;
  problem.x = given.x;
  if (given.lengths) problem.lengths = *given.lengths;
  std::shared_ptr<void> between[2];  // of the layer before, and of this one
  for (int layer = 0; layer < layers; ++layer) {
    TensorView out = given.y;
    if (layer + 1 < layers) {
      const DType dtype = code_dtype(stack.cell(layer, 0).parameters().formats.h);
      auto& memory = between[layer % 2];
      if (!memory) memory = scratch_on(given.x.device, steps * batch * directions * size * item_size(dtype), stream);
      out = TensorView(memory.get(), dtype, {steps, batch, directions * size}, given.x.device);
    }
    for (int direction = 0; direction < directions; ++direction) {
      const int cell = layer * directions + direction;
      problem.gru = &stack.cell(layer, direction).storage();
      problem.y = columns(out, direction * size, size);
      problem.h0 = slice(given.h0, cell);
      problem.last = slice(given.last, cell);
      problem.gates = slice(given.gates, cell);
      problem.reverse = reverse != (direction == 1);
      gru_dispatch().run(problem);
    }
    problem.x = out;
  }
}

// Runs QuantizedGru and GruStack alike. `stacked`: h0, last and gates have an axis of layers and directions.
void run_views(const GruStack& stack, const TensorView& x, const TensorView* h0, const TensorView& y,
               const TensorView* last, const GruRun& options, bool stacked) {
  GruAxes axes;
  axes.batch_first = options.batch_first;
  axes.one_step = x.rank == 2 && stack.directions() == 1 && !options.lengths && !options.gates;
  axes.stacked = stacked;
  QCORE_CHECK_VALUE(x.rank == 3 || axes.one_step, "gru: x has shape ", shape_string(x), ", expected ",
                    options.batch_first ? "[B, T, C]" : "[T, B, C]",
                    " with C = ", stack.cell(0, 0).parameters().input_size);
  GruArguments given{x, y, h0, last, options.lengths, options.gates};
  if (axes.one_step) {
    given.x = with_axis(x);
    given.y = with_axis(y);
  } else if (axes.batch_first) {
    swap_steps_and_rows(given.x);
    swap_steps_and_rows(given.y);
  }
  TensorView states[3];
  if (!stacked) {
    const TensorView** const views[] = {&given.h0, &given.last, &given.gates};
    for (int i = 0; i < 3; ++i)
      if (*views[i]) {
        states[i] = with_axis(**views[i]);
        *views[i] = &states[i];
      }
  }
  check_gru_arguments(stack, given, axes);
  run_layers(stack, given, options.reverse, options.stream);
}

}  // namespace

GruStack GruStack::make(std::vector<QuantizedGru> cells, int directions) {
  QCORE_CHECK_VALUE(directions == 1 || directions == 2, "gru: directions is ", directions, ", expected 1 or 2");
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
  return GruStack(std::move(cells), directions);
}

void GruStack::run(const TensorView& x, const TensorView* h0, const TensorView& y, const TensorView* last,
                   const GruRun& options) const {
  QCORE_CHECK_VALUE(!options.reverse, "gru: reverse is set for a stack, whose directions say it");
  run_views(*this, x, h0, y, last, options, true);
}

void QuantizedGru::run(const TensorView& x, const TensorView* h0, const TensorView& y, const TensorView* last,
                       const GruRun& options) const {
  run_views(GruStack::make({*this}, 1), x, h0, y, last, options, false);
}

}  // namespace qcore
