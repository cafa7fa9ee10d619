#pragma once

#include "linear/problem.h"

// Rows of linear's kernel table for CUDA devices. Every pointer of their problems lies on problem.device, and
// problem.stream is a cudaStream_t.
namespace qcore {

// float, int8 and int8_asym for few rows: every weight is read once.
const char* sm75_gemv_unsupported_reason(const LinearProblem& problem);
void run_sm75_gemv(const LinearProblem& problem);

// float on tensor cores: codes times activations in 16 bits, scaled block by block.
const char* sm80_float_mma_unsupported_reason(const LinearProblem& problem);
void run_sm80_float_mma(const LinearProblem& problem);

// int8 with symmetric weights, few rows to about a hundred: tensor cores, tiles for all multiprocessors.
const char* sm90_int8_mma_unsupported_reason(const LinearProblem& problem);
void run_sm90_int8_mma(const LinearProblem& problem);

// int8 and int8_asym: products of warpgroups, sums and offsets in one launch.
const char* sm90_int8_wgmma_unsupported_reason(const LinearProblem& problem);
void run_sm90_int8_wgmma(const LinearProblem& problem);

// int8 and int8_asym: tensor cores, sums and offsets in one launch.
const char* sm80_int8_mma_unsupported_reason(const LinearProblem& problem);
void run_sm80_int8_mma(const LinearProblem& problem);

// int8 and int8_asym: one tensor-core GEMM per block of k, then dequantize and accumulate.
const char* sm75_int8_sliced_unsupported_reason(const LinearProblem& problem);
void run_sm75_int8_sliced(const LinearProblem& problem);

// Every compute mode and shape on plain CUDA cores.
const char* simt_unsupported_reason(const LinearProblem& problem);
void run_simt(const LinearProblem& problem);

}  // namespace qcore
