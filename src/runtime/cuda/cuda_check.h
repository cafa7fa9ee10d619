#pragma once

#include <cuda_runtime.h>

namespace qcore {

// Throws CudaError("<function> failed: <text> (<code>)") and clears the error where it can be cleared, so that the
// next call does not report it again. `expression` may be a whole call: what follows the function's name is dropped.
[[noreturn]] void throw_cuda_error(const char* expression, cudaError_t status);

inline void check_cuda(cudaError_t status, const char* expression) {
  if (__builtin_expect(status != cudaSuccess, 0)) throw_cuda_error(expression, status);
}

}  // namespace qcore

// Every call of the CUDA runtime: QCORE_CHECK_CUDA(cudaSetDevice(index));
#define QCORE_CHECK_CUDA(call) ::qcore::check_cuda((call), #call)
