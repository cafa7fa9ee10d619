#pragma once

#include "conv2d/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<Conv2dProblem>& conv2d_dispatch();

// The definition: any format, any shape, plain loops over src/numerics.
const char* conv2d_reference_unsupported_reason(const Conv2dProblem& problem);
void run_conv2d_reference(const Conv2dProblem& problem);

// 1x1 windows over pixels whose channels are neighbors: a matrix product, and linear's.
const char* conv2d_linear_unsupported_reason(const Conv2dProblem& problem);
void run_conv2d_linear(const Conv2dProblem& problem);

struct ConvKernels;

// The tiled CPU driver, with one instruction set's tile kernels.
const char* tiled_conv_unsupported_reason(const Conv2dProblem& problem);
void run_tiled_conv(const Conv2dProblem& problem, const ConvKernels& kernels);

}  // namespace qcore
