#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Instructions that C++ has no words for, each with what it means in plain C++: that is what runs on the CPU.
namespace qcore::ptx {

// Sum of the four unsigned bytes of `word`, plus c.
__device__ __forceinline__ std::uint32_t add_bytes(std::uint32_t word, std::uint32_t c) {
#if defined(__CUDA_ARCH__)
  return __dp4a(word, 0x01010101u, c);
#else
  for (int i = 0; i < 4; ++i) c += word >> (8 * i) & 0xffu;
  return c;
#endif
}

// c + a.lo16 * b[0] + a.hi16 * b[1], all signed, b[i] the bytes of `bytes`.
__device__ __forceinline__ std::int32_t dot2_low(std::uint32_t pair, std::uint32_t bytes, std::int32_t c) {
#if defined(__CUDA_ARCH__)
  return __dp2a_lo(static_cast<int>(pair), static_cast<int>(bytes), c);
#else
  return c + static_cast<std::int16_t>(pair) * static_cast<std::int8_t>(bytes) +
         static_cast<std::int16_t>(pair >> 16) * static_cast<std::int8_t>(bytes >> 8);
#endif
}

// Likewise with b[2] and b[3].
__device__ __forceinline__ std::int32_t dot2_high(std::uint32_t pair, std::uint32_t bytes, std::int32_t c) {
#if defined(__CUDA_ARCH__)
  return __dp2a_hi(static_cast<int>(pair), static_cast<int>(bytes), c);
#else
  return dot2_low(pair, bytes >> 16, c);
#endif
}

}  // namespace qcore::ptx
