#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Packing and unpacking of bytes, with what it means in plain C++: that is what runs on the CPU.
namespace qcore::ptx {

// (word & mask) ^ bits, one LOP3.
__device__ __forceinline__ std::uint32_t and_xor(std::uint32_t word, std::uint32_t mask, std::uint32_t bits) {
#if defined(__CUDACC__)
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
#else
  return (word & mask) ^ bits;
#endif
}

// The lowest bytes of four words, a's lowest.
__device__ __forceinline__ std::uint32_t lowest_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                                      std::uint32_t d) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
#else
  return (a & 0xffu) | (b & 0xffu) << 8 | (c & 0xffu) << 16 | (d & 0xffu) << 24;
#endif
}

// The larger of both lower halves, and that of both upper ones, without signs.
__device__ __forceinline__ std::uint32_t largest_halves(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __vmaxu2(a, b);
#else
  const std::uint32_t low = (a & 0xffffu) > (b & 0xffffu) ? a : b, high = a >> 16 > b >> 16 ? a : b;
  return (low & 0xffffu) | (high & 0xffff0000u);
#endif
}

}  // namespace qcore::ptx
