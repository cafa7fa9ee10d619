#pragma once

#include "lut/problem.h"

// Rows of the kernel tables for CUDA devices. The arrays of their problems lie on problem.device, and problem.stream is
// a cudaStream_t. The reference's bits, but for the payload of NaNs in float16 and bfloat16 outputs, which are the
// device's.
namespace qcore {

const char* lut_cuda_unsupported_reason(const LutProblem& problem);
void run_lut_cuda(const LutProblem& problem);

// From this number on, contiguous float16 and bfloat16 elements are looked up in a map of all 65,536 results, and
// contiguous float32 elements find their interval by their highest bits, where the table's cuts permit it.
constexpr std::int64_t kManyElements = 1 << 20;
void run_lut_cuda(const LutProblem& problem, std::int64_t many_elements);

const char* row_cuda_unsupported_reason(const RowProblem& problem);
void run_softmax_cuda(const RowProblem& problem);
void run_rms_norm_cuda(const RowProblem& problem);

}  // namespace qcore
