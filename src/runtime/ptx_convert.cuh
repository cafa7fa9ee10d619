#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

// Conversions in one or two instructions, each with what it means in plain C++: that is what runs on the CPU.
namespace qcore::ptx {

// fp16 as fp32, exactly.
__device__ __forceinline__ float half_float(std::uint16_t half) {
#if defined(__CUDACC__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const float magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                          : exponent != 0 ? std::ldexp(static_cast<float>(1024 + fraction), exponent - 25)
                                          : std::ldexp(static_cast<float>(fraction), -24);
  return half & 0x8000 ? -magnitude : magnitude;
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

}  // namespace qcore::ptx
