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
  bool overlap = false;          // with the kernel before it: see ptx_launch.cuh. Needs compute capability 9.0
};

constexpr std::size_t kSharedWithoutAsking = 48 << 10;

// A failed launch throws CudaError under `name`.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            const Arguments&... arguments) {
#if defined(__CUDACC__)
  if (shape.shared_bytes > kSharedWithoutAsking)
    check_cuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes)),
        name);
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = shape.overlap ? 1 : 0;
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

// The launch's shape.shared_bytes of dynamic shared memory, uninitialised.
__device__ __forceinline__ char* dynamic_shared() {
#if defined(__CUDACC__)
  extern __shared__ uint4 dynamic_storage[];
  return reinterpret_cast<char*>(dynamic_storage);
#else
  return cuda_host::dynamic_shared<char>();
#endif
}

}  // namespace qcore
