#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Loads without a branch, so that several of them are on their way at once: the compiler puts what uses a loaded value
// into the branch, too.
namespace qcore::ptx {

// Loads 4 or 8 bytes of global memory if `exists`, otherwise sets zeros.
__device__ __forceinline__ void load_if(std::uint32_t (&words)[1], const void* from, bool exists) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "{\n"
      ".reg .pred exists;\n"
      "setp.ne.s32 exists, %2, 0;\n"
      "mov.b32 %0, 0;\n"
      "@exists ld.global.b32 %0, [%1];\n"
      "}"
      : "=&r"(words[0])
      : "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(exists)));
#else
  words[0] = exists ? *static_cast<const std::uint32_t*>(from) : 0;
#endif
}
__device__ __forceinline__ void load_if(std::uint32_t (&words)[2], const void* from, bool exists) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "{\n"
      ".reg .pred exists;\n"
      "setp.ne.s32 exists, %3, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "@exists ld.global.v2.b32 {%0, %1}, [%2];\n"
      "}"
      : "=&r"(words[0]), "=&r"(words[1])
      : "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(exists)));
#else
  const auto* two = static_cast<const std::uint32_t*>(from);
  words[0] = exists ? two[0] : 0, words[1] = exists ? two[1] : 0;
#endif
}

}  // namespace qcore::ptx
