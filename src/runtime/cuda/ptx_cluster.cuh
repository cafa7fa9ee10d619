#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/cuda/ptx_wgmma.cuh"

// Wraps the instructions of thread block clusters for files that are compiled for every target: before sm_90 there are
// no clusters, and none of this (nor runtime/cuda/ptx_wgmma.cuh, whose barriers it goes with) may be called.
namespace qcore::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasClusters = false;
#else
constexpr bool kHasClusters = true;
#endif

// Stores 16 bytes to this place of the dynamic shared memory of thread block `rank` of the cluster, and counts them at
// the barrier there: who has waited for its phase sees them.
__device__ __forceinline__ void cluster_store(void* shared, int rank, const uint4& value, Barrier& barrier) {
#if !defined(__CUDACC__)
  std::memcpy(cuda_host::shared_of(rank, shared), &value, sizeof value);
  cuda_host::barrier_complete(static_cast<std::uint64_t*>(cuda_host::shared_of(rank, &barrier.state)), sizeof value);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 remote, counter;\n"
      "mapa.shared::cluster.u32 remote, %0, %2;\n"
      "mapa.shared::cluster.u32 counter, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [remote], {%3, %4, %5, %6}, [counter];\n"
      "}" ::"r"(shared_address(shared)),
      "r"(shared_address(&barrier)), "r"(rank), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
      : "memory");
#endif
}

}  // namespace qcore::ptx
