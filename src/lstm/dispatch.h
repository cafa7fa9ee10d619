#pragma once

#include "lstm/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<LstmProblem>& lstm_dispatch();

// The definition: plain loops over src/numerics.
void run_lstm_reference(const LstmProblem& problem);

}  // namespace qcore
