#pragma once

#include <cuda_runtime.h>
#include <cutlass/cutlass.h>

#include "runtime/check.h"

namespace qcore {

inline void check_cutlass(const char* name, int m, int n, int k, cutlass::Status status) {
  if (status == cutlass::Status::kSuccess) return;
  cudaGetLastError();
  throw CudaError(
      message(name, " failed: ", cutlass::cutlassGetStatusString(status), " (M = ", m, ", N = ", n, ", K = ", k, ")"));
}

}  // namespace qcore
