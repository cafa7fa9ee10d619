#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// What thread blocks of a cluster have in common, in files compiled for every target: before sm_90 there are no
// clusters, and none of this is called.
namespace qcore::ptx {

// A barrier of all threads of the cluster in two halves: what a thread wrote before it arrived, others see after they
// have waited.
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if !defined(__CUDACC__)
  cuda_host::cluster_sync();
#elif __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Stores to this place of the dynamic shared memory of thread block `rank` of the cluster.
__device__ __forceinline__ void cluster_store(std::uint32_t* shared, int rank, std::uint32_t value) {
#if !defined(__CUDACC__)
  *static_cast<std::uint32_t*>(cuda_host::shared_of(rank, shared)) = value;
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.u32 [remote], %2;\n"
      "}" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))),
      "r"(rank), "r"(value)
      : "memory");
#endif
}

}  // namespace qcore::ptx
