#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_half.cuh"

namespace qcore::ptx {

#if defined(__CUDACC__)
#define QCORE_MMA_M8N8K16(types)                                                           \
  asm("mma.sync.aligned.m8n8k16.row.col.s32." types ".s32 {%0, %1}, {%2}, {%3}, {%0, %1};" \
      : "+r"(d[2 * half]), "+r"(d[2 * half + 1])                                           \
      : "r"(a[half + 2 * k]), "r"(b[k]))
#define QCORE_MMA_M16N8K32(types)                                            \
  asm("mma.sync.aligned.m16n8k32.row.col.s32." types                         \
      ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#endif

// d += a b with the fragments of m16n8k32 (runtime/cuda/ptx.cuh), the bytes of a and of b signed or unsigned. All lanes
// must call.
template <bool kSignedA, bool kSignedB>
__device__ __forceinline__ void mma_bytes(std::int32_t (&d)[4], const std::uint32_t (&a)[4],
                                          const std::uint32_t (&b)[2]) {
#if !defined(__CUDACC__)
  cuda_host_mma_m16n8k32(d, {a[0], a[1], a[2], a[3], b[0], b[1]}, d, kSignedA, kSignedB);
#elif __CUDA_ARCH__ >= 800
  if constexpr (kSignedA && kSignedB)
    QCORE_MMA_M16N8K32("s8.s8");
  else if constexpr (kSignedA)
    QCORE_MMA_M16N8K32("s8.u8");
  else if constexpr (kSignedB)
    QCORE_MMA_M16N8K32("u8.s8");
  else
    QCORE_MMA_M16N8K32("u8.u8");
#else
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if constexpr (kSignedA && kSignedB)
        QCORE_MMA_M8N8K16("s8.s8");
      else if constexpr (kSignedA)
        QCORE_MMA_M8N8K16("s8.u8");
      else if constexpr (kSignedB)
        QCORE_MMA_M8N8K16("u8.s8");
      else
        QCORE_MMA_M8N8K16("u8.u8");
    }
#endif
}

// c + sum of a[i] * b[i], the bytes of a signed or unsigned, those of b signed; modulo 2^32.
template <bool kSignedA>
__device__ __forceinline__ std::int32_t dot4(std::uint32_t a, std::uint32_t b, std::int32_t c) {
#if defined(__CUDACC__)
  std::int32_t d;
  if constexpr (kSignedA)
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  else
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  auto sum = static_cast<std::uint32_t>(c);
  for (int i = 0; i < 4; ++i) {
    const auto byte = static_cast<std::uint8_t>(a >> (8 * i));
    const int value = kSignedA ? int{static_cast<std::int8_t>(byte)} : int{byte};
    sum += static_cast<std::uint32_t>(value * static_cast<std::int8_t>(b >> (8 * i)));
  }
  return static_cast<std::int32_t>(sum);
#endif
}

// Four words of four bytes, turned: word i becomes the bytes i of all of them.
__device__ __forceinline__ void transpose_bytes(std::uint32_t (&words)[4]) {
  const std::uint32_t low[2] = {pick_bytes<0x5140>(words[0], words[1]), pick_bytes<0x5140>(words[2], words[3])},
                      high[2] = {pick_bytes<0x7362>(words[0], words[1]), pick_bytes<0x7362>(words[2], words[3])};
  words[0] = pick_bytes<0x5410>(low[0], low[1]);
  words[1] = pick_bytes<0x7632>(low[0], low[1]);
  words[2] = pick_bytes<0x5410>(high[0], high[1]);
  words[3] = pick_bytes<0x7632>(high[0], high[1]);
}

#if defined(__CUDACC__)
#undef QCORE_MMA_M8N8K16
#undef QCORE_MMA_M16N8K32
#endif

}  // namespace qcore::ptx
