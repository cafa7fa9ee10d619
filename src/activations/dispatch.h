#pragma once

#include "activations/problem.h"
#include "gemm/cpu/vtable.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<ActivationsProblem>& quantize_activations_dispatch();

// The definition: plain loops over src/numerics.
void run_quantize_activations_reference(const ActivationsProblem& problem);

// By the packing of linear's kernels, and a copy.
void run_quantize_activations_cpu(const ActivationsProblem& problem, const BlockKernels& kernels);

}  // namespace qcore
