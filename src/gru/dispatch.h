#pragma once

#include "gru/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<GruProblem>& gru_dispatch();

// The definition: plain loops over src/numerics.
void run_gru_reference(const GruProblem& problem);

}  // namespace qcore
