#pragma once

#include <cuda_runtime.h>

// Host versions are for tests/cuda_host, as in ptx.cuh.
namespace qcore::ptx {

// 16 bytes by one instruction. An assignment may be taken apart where its value is computed word by word.
__device__ __forceinline__ void store_whole(uint4* to, const uint4& value) {
#if defined(__CUDACC__)
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
#else
  *to = value;
#endif
}

}  // namespace qcore::ptx
