#pragma once

#include "awq/cpu/vtable.h"
#include "awq/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<AwqProblem>& awq_dispatch();
KernelTable<AwqLinearProblem>& awq_linear_dispatch();

// The definitions: plain loops over src/numerics. Any strides.
void run_awq_reference(const AwqProblem& problem);
void run_awq_linear_reference(const AwqLinearProblem& problem);

// Threads and tiles, with one instruction set's kernels.
const char* awq_cpu_unsupported_reason(const AwqProblem& problem);
void run_awq_cpu(const AwqProblem& problem, const AwqKernels& kernels);
const char* awq_linear_cpu_unsupported_reason(const AwqLinearProblem& problem);
void run_awq_linear_cpu(const AwqLinearProblem& problem, const AwqKernels& kernels);

// The best instruction set's kernels, or null.
const AwqKernels* awq_kernels_in_use();

}  // namespace qcore
