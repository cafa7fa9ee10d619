#pragma once

#include <array>

#include "qcore/recurrent/fixed_format.h"
#include "recurrent/views.h"

namespace qcore {

// A layer's sizes and formats as its arguments are checked against.
struct RunShape {
  const char* op;
  int layers, directions;
  std::int64_t input_size, hidden_size, state_size;  // C, H, and the size of h, which is H without a projection
  FixedFormat x, y;
  std::int64_t gate_tensors = 0;  // `gates` is [layers * directions, T, B, gate_tensors * H]
};

// A state before and after a run, [layers * directions, B, size] each, or null.
struct StateArgument {
  const char *initial_name, *last_name;
  const FixedFormat* format;
  std::int64_t size;
  const TensorView *initial, *last;
};

// The arguments of a run, all axes there: x [T, B, C], y [T, B, directions * state_size]. States without a format are
// none.
struct RunArguments {
  TensorView x, y;
  std::array<StateArgument, 2> states;
  const TensorView *lengths, *gates;
};

// How the caller sees them, for errors.
struct RunAxes {
  bool batch_first = false;
  bool one_step = false;  // x [B, C], y [B, state_size]
  bool stacked = true;    // states and gates have an axis of layers and directions
};

// Throws before anything is written.
void check_run_arguments(const RunShape& shape, const RunArguments& arguments, const RunAxes& axes);

// The same arguments with all axes there, for a run. Throws if x has another rank.
class WholeArguments {
 public:
  WholeArguments(const RunShape& shape, const RunArguments& given, bool batch_first, bool stacked);
  WholeArguments(const WholeArguments&) = delete;

  RunArguments arguments;
  RunAxes axes;

 private:
  TensorView views_[5];
};

}  // namespace qcore
