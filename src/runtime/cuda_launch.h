#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "runtime/cuda_check.h"

// The one place where kernels are launched and shared memory is declared. Compiled as plain C++ (tests/cuda_host), a
// launch runs the kernel on the CPU.
namespace qcore {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // dynamic shared memory
};

// A failed launch throws CudaError under `name`.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            const Arguments&... arguments) {
#if defined(__CUDACC__)
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), name);
#else
  (void)stream;
  check_cuda(cuda_host::launch(name, kernel, shape.grid, shape.block, shape.shared_bytes, arguments...), name);
#endif
}

// Static shared memory: one T per thread block, uninitialised, the same object for every thread of the block.
template <class T>
__device__ __forceinline__ T& block_shared() {
#if defined(__CUDACC__)
  __shared__ T storage;
  return storage;
#else
  return cuda_host::block_shared<T>();
#endif
}

}  // namespace qcore
