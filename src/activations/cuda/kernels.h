#pragma once

#include "activations/problem.h"

// The row of the kernel table on CUDA.
namespace qcore {

const char* simt_activations_unsupported_reason(const ActivationsProblem& problem);
void run_simt_activations(const ActivationsProblem& problem);

}  // namespace qcore
