#pragma once

#include "hadamard/cpu/vtable.h"
#include "hadamard/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<HadamardProblem>& hadamard_dispatch();

// The definition, element by element.
void run_hadamard_reference(const HadamardProblem& problem);

// Threads, strides and dtypes around one instruction set's kernels.
void run_hadamard_cpu(const HadamardProblem& problem, const HadamardKernels& kernels);

}  // namespace qcore
