#pragma once

#include "gru/problem.h"

// Rows of the kernel table for CUDA devices. The arrays of their problems lie on problem.device, and problem.stream is
// a cudaStream_t. The reference's integers.
namespace qcore {

// W x of many steps at once, then a launch for each step. Takes every problem.
const char* gru_cuda_unsupported_reason(const GruProblem& problem);
void run_gru_cuda(const GruProblem& problem);

// One launch for many steps: clusters of thread blocks keep R in shared memory.
const char* gru_persistent_unsupported_reason(const GruProblem& problem);
void run_gru_persistent(const GruProblem& problem);

struct GruCudaOptions {
  bool persistent = false;
  int largest_cluster = 8;  // that every device with clusters runs
  // Limit of the scratch memory for inputs, unless one step takes more.
  std::int64_t scratch_bytes = std::int64_t{256} << 20;
};
void run_gru_cuda(const GruProblem& problem, const GruCudaOptions& options);

// Codes as numbers or numbers as codes, for quantize_fixed() and dequantize_fixed(); values are not checked.
void convert_fixed_cuda(const TensorView& from, const FixedFormat& format, const TensorView& to, void* stream);

}  // namespace qcore
