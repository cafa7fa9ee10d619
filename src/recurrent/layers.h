#pragma once

#include <memory>

#include "recurrent/arguments.h"
#include "recurrent/code_access.h"
#include "recurrent/problem.h"
#include "runtime/device.h"
#include "runtime/kernel_table.h"

namespace qcore {

inline bool same_numbers(const FixedFormat& a, const FixedFormat& b) {
  return a.bits == b.bits && a.exponent == b.exponent && a.zero_point == b.zero_point;
}

// Runs layer after layer, directions side by side, each layer's outputs the next one's inputs. `cell(layer, direction,
// problem)` sets the layer that a problem is for and returns its format of h.
template <class Problem, class Cell>
void run_layers(const RunShape& shape, const RunArguments& given, bool reverse, void* stream,
                KernelTable<Problem>& dispatch, const Cell& cell) {
  const std::int64_t steps = given.x.shape[0], batch = given.x.shape[1], size = shape.state_size;
  const int layers = shape.layers, directions = shape.directions;
  const auto& [h, c] = given.states;
  if (batch == 0 || (steps == 0 && !h.last && !c.last)) return;

  Problem problem;
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
      const DType dtype = code_dtype(cell(layer, 0, problem));
      auto& memory = between[layer % 2];
      if (!memory) memory = scratch_on(given.x.device, steps * batch * directions * size * item_size(dtype), stream);
      out = TensorView(memory.get(), dtype, {steps, batch, directions * size}, given.x.device);
    }
    for (int direction = 0; direction < directions; ++direction) {
      const int index = layer * directions + direction;
      cell(layer, direction, problem);
      problem.y = columns(out, direction * size, size);
      problem.h0 = slice(h.initial, index);
      problem.last = slice(h.last, index);
      problem.c0 = slice(c.initial, index);
      problem.last_cell = slice(c.last, index);
      problem.gates = slice(given.gates, index);
      problem.reverse = reverse != (direction == 1);
      dispatch.run(problem);
    }
    problem.x = out;
  }
}

}  // namespace qcore
