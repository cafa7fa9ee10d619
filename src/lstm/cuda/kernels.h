#pragma once

#include "lstm/problem.h"
#include "recurrent/cuda/persistent_plan.h"

// Rows of the kernel table for CUDA devices. The arrays of their problems lie on problem.device, and problem.stream is
// a cudaStream_t. The reference's integers.
namespace qcore {

// W x of many steps at once, then a launch or a few for each step. Takes every problem.
const char* lstm_cuda_unsupported_reason(const LstmProblem& problem);
void run_lstm_cuda(const LstmProblem& problem);

// One launch for many steps: clusters of thread blocks keep R in shared memory.
const char* lstm_persistent_unsupported_reason(const LstmProblem& problem);
void run_lstm_persistent(const LstmProblem& problem);

void run_lstm_cuda(const LstmProblem& problem, const RecurrentCudaOptions& options);

}  // namespace qcore
