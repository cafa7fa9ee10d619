#pragma once

#include "gru/gru_storage.h"
#include "recurrent/problem.h"

namespace qcore {

// Size of a GRU's trace for a step and row, in units of H.
constexpr int kTraceTensors = 17;

// A run with gates [T, B, 4H] and a trace [T, B, 17H].
struct GruProblem : RecurrentProblem {
  const GruStorage* gru = nullptr;
};

}  // namespace qcore
