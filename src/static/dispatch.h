#pragma once

#include "runtime/kernel_table.h"
#include "static/problem.h"

namespace qcore {

KernelTable<StaticProblem>& static_dispatch();

// The definition: plain loops over src/numerics.
const char* static_reference_unsupported_reason(const StaticProblem& problem);
void run_static_reference(const StaticProblem& problem);

// With what one instruction set contributes: every layer on the CPU.
struct StaticTileKernels;
const char* static_tiled_unsupported_reason(const StaticProblem& problem);
void run_static_tiled(const StaticProblem& problem, const StaticTileKernels& kernels);

}  // namespace qcore
