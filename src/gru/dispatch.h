#pragma once

#include "gru/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<GruProblem>& gru_dispatch();

// The definition: plain loops over src/numerics.
void run_gru_reference(const GruProblem& problem);

struct GruKernels;  // gru_kernels.h

const char* gru_vector_unsupported_reason(const GruProblem& problem);
void run_gru_vector(const GruProblem& problem, const GruKernels& kernels);

}  // namespace qcore
