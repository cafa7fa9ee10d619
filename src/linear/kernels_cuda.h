#pragma once

#include "linear/problem.h"

// Rows of linear's kernel table for CUDA devices. Every pointer of their problems lies on problem.device, and
// problem.stream is a cudaStream_t.
namespace qcore {

bool cuda_kernels_available();

// int8 and int8_asym: one tensor-core GEMM per block of k, then dequantise and accumulate.
const char* sliced_why_not(const LinearProblem& problem);
void run_sliced(const LinearProblem& problem);

// Every compute mode and shape on plain CUDA cores.
const char* simt_why_not(const LinearProblem& problem);
void run_simt(const LinearProblem& problem);

}  // namespace qcore
