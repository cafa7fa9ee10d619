#pragma once

#include "linear/cuda/kernels.h"
#include "linear/grouped/problem.h"

// Rows of grouped_linear's kernel table for CUDA devices: one launch for the products of all experts.
namespace qcore {

using GroupedLinearKernel = void(const GroupedLinearProblem&, const ScratchBounds&);

// Likewise for the weights of all experts, which are expanded whole.
void run_expanded(const GroupedLinearProblem& problem, const ScratchBounds& bounds, GroupedLinearKernel* run);

// int8 with symmetric weights for up to 8 rows on Hopper: one launch, a row of each thread block.
const char* grouped_gemv_unsupported_reason(const GroupedLinearProblem& problem);
void run_grouped_gemv(const GroupedLinearProblem& problem, const ScratchBounds& bounds);

// int8 and int8_asym on Hopper: every expert begins at a tile of sm90_int8_wgmma.
const char* grouped_sm90_int8_wgmma_unsupported_reason(const GroupedLinearProblem& problem);
void run_grouped_sm90_int8_wgmma(const GroupedLinearProblem& problem, const ScratchBounds& bounds);

// int8 and int8_asym on tensor cores: tiles of 64 x 64.
const char* grouped_int8_mma_unsupported_reason(const GroupedLinearProblem& problem);
void run_grouped_int8_mma(const GroupedLinearProblem& problem, const ScratchBounds& bounds);

// Every compute mode and shape on plain CUDA cores, by the kernel of linear.
const char* grouped_simt_unsupported_reason(const GroupedLinearProblem& problem);
void run_grouped_simt(const GroupedLinearProblem& problem, const ScratchBounds& bounds);

}  // namespace qcore
