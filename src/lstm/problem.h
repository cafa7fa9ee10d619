#pragma once

#include "lstm/storage.h"
#include "recurrent/problem.h"

namespace qcore {

// Size of an LSTM's trace for a step and row.
inline std::int64_t lstm_trace_size(const LstmParameters& p) {
  constexpr int kTensors = 18;  // of H codes: wx and rh of each gate, its argument and result, c and c_tanh
  return (p.projection_size ? kTensors + 1 : kTensors) * p.hidden_size + p.state_size();
}

struct LstmProblem : RecurrentProblem {
  const LstmStorage* lstm = nullptr;
};

}  // namespace qcore
