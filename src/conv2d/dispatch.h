#pragma once

#include "conv2d/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<Conv2dProblem>& conv2d_dispatch();

// 1x1 windows over pixels whose channels are neighbors: a matrix product, and linear's.
const char* conv2d_linear_unsupported_reason(const Conv2dProblem& problem);
void run_conv2d_linear(const Conv2dProblem& problem);

}  // namespace qcore
