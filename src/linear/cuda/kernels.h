#pragma once

#include "linear/problem.h"

// Rows of linear's kernel table for CUDA devices. Every pointer of their problems lies on problem.device, and
// problem.stream is a cudaStream_t.
namespace qcore {

// float, int8 and int8_asym for few rows: every weight is read once.
const char* gemv_unsupported_reason(const LinearProblem& problem);
void run_gemv(const LinearProblem& problem);

// float on tensor cores: codes times activations in 16 bits, scaled block by block.
const char* float_mma_unsupported_reason(const LinearProblem& problem);
void run_float_mma(const LinearProblem& problem);

// int8 with symmetric weights, few rows to about a hundred: tensor cores, tiles for all multiprocessors.
const char* int8_mma_unsupported_reason(const LinearProblem& problem);
void run_int8_mma(const LinearProblem& problem);

// int8 and int8_asym: products of warpgroups, sums and offsets in one launch.
const char* wgmma_unsupported_reason(const LinearProblem& problem);
void run_wgmma(const LinearProblem& problem);

// int8 and int8_asym: tensor cores, sums and offsets in one launch.
const char* fused_unsupported_reason(const LinearProblem& problem);
void run_fused(const LinearProblem& problem);

// int8 and int8_asym: one tensor-core GEMM per block of k, then dequantize and accumulate.
const char* sliced_unsupported_reason(const LinearProblem& problem);
void run_sliced(const LinearProblem& problem);

// Every compute mode and shape on plain CUDA cores.
const char* simt_unsupported_reason(const LinearProblem& problem);
void run_simt(const LinearProblem& problem);

}  // namespace qcore
