#pragma once

#include "lstm/storage.h"
#include "recurrent/problem.h"

namespace qcore {

// Size of an LSTM's trace for a step and row, in units of H.
constexpr int kLstmTraceTensors = 19;

struct LstmProblem : RecurrentProblem {
  const LstmStorage* lstm = nullptr;
};

}  // namespace qcore
