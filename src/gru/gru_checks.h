#pragma once

#include "qcore/gru.h"

namespace qcore {

// The arguments of a run of `layers` layers, all axes there: x [T, B, C], y [T, B, directions * H], h0 and last
// [layers * directions, B, H], gates [layers * directions, T, B, 4H].
struct GruArguments {
  TensorView x, y;
  const TensorView *h0, *last, *lengths, *gates;
};

// How the caller sees them, for errors.
struct GruAxes {
  bool batch_first = false;
  bool one_step = false;  // x [B, C], y [B, H]
  bool stacked = true;    // h0, last and gates have an axis of layers and directions
};

// Throws before anything is written.
void check_gru_arguments(const GruStack& stack, const GruArguments& arguments, const GruAxes& axes);

}  // namespace qcore
