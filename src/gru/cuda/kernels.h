#pragma once

#include "gru/problem.h"
#include "recurrent/cuda/persistent_plan.h"

// Rows of the kernel table for CUDA devices. The arrays of their problems lie on problem.device, and problem.stream is
// a cudaStream_t. The reference's integers.
namespace qcore {

// W x of many steps at once, then a launch or a few for each step. Takes every problem.
const char* gru_cuda_unsupported_reason(const GruProblem& problem);
void run_gru_cuda(const GruProblem& problem);

// One launch for many steps: clusters of thread blocks keep R in shared memory.
const char* gru_persistent_unsupported_reason(const GruProblem& problem);
void run_gru_persistent(const GruProblem& problem);

void run_gru_cuda(const GruProblem& problem, const RecurrentCudaOptions& options);

}  // namespace qcore
