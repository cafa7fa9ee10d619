#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Whole stores, prefetches, and loads and stores at addresses in shared memory that are numbers of 32 bits. A loop that
// uses pointers computes the address of shared memory again in each turn on sm_90, where a thread block may be part of
// a cluster. Host versions are for tests/cuda_host, as in ptx.cuh.
namespace qcore::ptx {

#if defined(__CUDACC__)
using SharedAddress = std::uint32_t;
#else
using SharedAddress = char*;
#endif

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

// Asks for what lies at an address in global memory, for a load that comes later.
__device__ __forceinline__ void prefetch(const void* global) {
#if defined(__CUDACC__)
  asm volatile("prefetch.global.L1 [%0];" ::"l"(global));
#else
  (void)global;
#endif
}

// Returns the address of a pointer's target, which lies in shared memory. The compiler keeps it instead of computing it
// again.
__device__ __forceinline__ SharedAddress shared_address(void* pointer) {
#if defined(__CUDACC__)
  auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(address));
#endif
  return address;
#else
  return static_cast<char*>(pointer);
#endif
}

// The same, for loops that need a pointer.
__device__ __forceinline__ char* kept_shared(char* pointer) {
#if defined(__CUDA_ARCH__)
  return static_cast<char*>(__cvta_shared_to_generic(shared_address(pointer)));
#else
  return pointer;
#endif
}

__device__ __forceinline__ uint4 load_shared_words(SharedAddress from) {
#if defined(__CUDACC__)
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(from)
               : "memory");
  return words;
#else
  return *reinterpret_cast<const uint4*>(from);
#endif
}

__device__ __forceinline__ std::uint16_t load_shared_half(SharedAddress from) {
#if defined(__CUDACC__)
  std::uint16_t value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(from) : "memory");
  return value;
#else
  return *reinterpret_cast<const std::uint16_t*>(from);
#endif
}

// Loads a struct of two words, which nothing writes anymore: the compiler may move the load.
template <class Pair>
__device__ __forceinline__ Pair load_shared_pair(SharedAddress from) {
  static_assert(sizeof(Pair) == 8);
#if defined(__CUDACC__)
  std::int32_t first, second;
  asm("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(first), "=r"(second) : "r"(from));
  return {first, second};
#else
  return *reinterpret_cast<const Pair*>(from);
#endif
}

__device__ __forceinline__ void store_shared_byte(SharedAddress to, std::uint32_t value) {
#if defined(__CUDACC__)
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(to), "r"(value) : "memory");
#else
  *to = static_cast<char>(value);
#endif
}

}  // namespace qcore::ptx
