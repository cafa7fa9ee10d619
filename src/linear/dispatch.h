#pragma once

#include "linear/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<LinearProblem>& linear_dispatch();

// The definition: any format, any shape, plain loops over src/numerics.
const char* reference_unsupported_reason(const LinearProblem& problem);
void run_reference(const LinearProblem& problem);

struct TileKernels;

// The tiled CPU driver, with one instruction set's tile kernels.
const char* tiled_unsupported_reason(const LinearProblem& problem);
void run_tiled(const LinearProblem& problem, const TileKernels& kernels);

}  // namespace qcore
