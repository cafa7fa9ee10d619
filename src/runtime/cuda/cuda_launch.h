#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "runtime/cuda/cuda_check.h"

// The one place where kernels are launched and shared memory is declared. Compiled as plain C++ (tests/cuda_host), a
// launch runs the kernel on the CPU.
namespace qcore {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // dynamic shared memory
  dim3 cluster = dim3(1);        // thread blocks that run together and see each other's shared memory; divides the grid
  bool overlap = false;          // with the kernel before it: see ptx_launch.cuh. Needs compute capability 9.0
};

constexpr std::size_t kSharedWithoutAsking = 48 << 10;

#if defined(__CUDACC__)
// A launch's configuration. It points into itself.
class LaunchConfiguration {
 public:
  template <class Kernel>
  LaunchConfiguration(const char* name, Kernel kernel, const LaunchShape& shape, cudaStream_t stream) {
    if (shape.shared_bytes > kSharedWithoutAsking)
      check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shape.shared_bytes)),
                 name);
    config_.gridDim = shape.grid;
    config_.blockDim = shape.block;
    config_.dynamicSmemBytes = shape.shared_bytes;
    config_.stream = stream;
    config_.attrs = attributes_;
    if (shape.cluster.x > 1) {
      cudaLaunchAttribute& cluster = attributes_[config_.numAttrs++];
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim.x = shape.cluster.x;
      cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    }
    if (shape.overlap) {
      cudaLaunchAttribute& overlap = attributes_[config_.numAttrs++];
      overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      overlap.val.programmaticStreamSerializationAllowed = 1;
    }
  }
  LaunchConfiguration(const LaunchConfiguration&) = delete;
  LaunchConfiguration& operator=(const LaunchConfiguration&) = delete;
  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchConfig_t config_{};
  cudaLaunchAttribute attributes_[2] = {};
};
#endif

// How many clusters of the launch's shape the device runs at once.
template <class... Parameters>
int resident_clusters(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape) {
  int clusters = 0;
#if defined(__CUDACC__)
  const LaunchConfiguration configuration(name, kernel, shape, nullptr);
  if (shape.cluster.x > 1) {
    check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, configuration.get()), name);
  } else {
    int device = 0, multiprocessors = 0;
    check_cuda(cudaGetDevice(&device), name);
    check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), name);
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&clusters, kernel, static_cast<int>(shape.block.x),
                                                             shape.shared_bytes),
               name);
    clusters *= multiprocessors;
  }
#else
  (void)name, (void)kernel, (void)shape;
  clusters = cuda_host::kResidentClusters;
#endif
  return clusters > 0 ? clusters : 1;
}

// A failed launch throws CudaError under `name`.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            const Arguments&... arguments) {
#if defined(__CUDACC__)
  const LaunchConfiguration configuration(name, kernel, shape, stream);
  check_cuda(cudaLaunchKernelEx(configuration.get(), kernel, Parameters(arguments)...), name);
#else
  (void)stream;
  check_cuda(
      cuda_host::launch(name, kernel, shape.grid, shape.block, shape.shared_bytes, shape.cluster.x, arguments...),
      name);
#endif
}

// Static shared memory: one T per thread block, uninitialized, the same object for every thread of the block.
template <class T>
__device__ __forceinline__ T& block_shared() {
#if defined(__CUDACC__)
  __shared__ T storage;
  return storage;
#else
  return cuda_host::block_shared<T>();
#endif
}

// The launch's shape.shared_bytes of dynamic shared memory, uninitialized.
__device__ __forceinline__ char* dynamic_shared() {
#if defined(__CUDACC__)
  extern __shared__ uint4 dynamic_storage[];
  return reinterpret_cast<char*>(dynamic_storage);
#else
  return cuda_host::dynamic_shared<char>();
#endif
}

}  // namespace qcore
