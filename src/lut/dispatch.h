#pragma once

#include "lut/cpu/vtable.h"
#include "lut/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<LutProblem>& lut_dispatch();
KernelTable<RowProblem>& softmax_dispatch();
KernelTable<RowProblem>& rms_norm_dispatch();

// The definitions: plain loops over src/numerics.
void run_lut_reference(const LutProblem& problem);
void run_softmax_reference(const RowProblem& problem);
void run_rms_norm_reference(const RowProblem& problem);

// Threads, strides and dtypes, with one instruction set's kernels.
void run_lut_cpu(const LutProblem& problem, const LutKernels& kernels);
void run_softmax_cpu(const RowProblem& problem, const LutKernels& kernels);
void run_rms_norm_cpu(const RowProblem& problem, const LutKernels& kernels);

}  // namespace qcore
