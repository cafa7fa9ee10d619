#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "qcore/tensor_view.h"

// Pairs of 16-bit floats: instructions of sm_80 and later, each with what it means in plain C++. A word holds two
// values, the lower one first. The CPU's conversions come from its stand-in for cuda_runtime.h.
namespace qcore::ptx {

enum class Half { f16, bf16 };

// Bytes of (low, high), numbered 0 to 7, picked by the four digits of `selector`, lowest first.
__device__ __forceinline__ std::uint32_t pick_bytes(std::uint32_t low, std::uint32_t high, unsigned selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(low, high, selector);
#else
  const std::uint64_t both = static_cast<std::uint64_t>(high) << 32 | low;
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<std::uint32_t>(both >> (8 * (selector >> (4 * i) & 7u)) & 0xffu) << (8 * i);
  return result;
#endif
}

template <unsigned selector>
__device__ __forceinline__ std::uint32_t pick_bytes(std::uint32_t low, std::uint32_t high) {
  return pick_bytes(low, high, selector);
}

// a * b + c of both values, each rounded once.
template <Half kHalf>
__device__ __forceinline__ std::uint32_t fma_pair(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
#if defined(__CUDACC__)
  std::uint32_t d;
  if constexpr (kHalf == Half::f16)
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  return cuda_host::fma_halves(a, b, c, kHalf == Half::bf16);
#endif
}

constexpr Half half_of(DType dtype) { return dtype == DType::bf16 ? Half::bf16 : Half::f16; }

// Both values rounded to half the bits, half to even; the payload of NaNs is the device's.
template <Half kHalf>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  const auto half = [](float value) -> std::uint32_t {
    const auto bits = static_cast<std::uint32_t>(__float_as_int(value));
    if constexpr (kHalf == Half::bf16)
      return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    std::uint16_t rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
  };
  return half(low) | half(high) << 16;
#elif defined(__CUDACC__)
  std::uint32_t d;
  if constexpr (kHalf == Half::f16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
#else
  return cuda_host::half_bits(low, kHalf == Half::bf16) | std::uint32_t{cuda_host::half_bits(high, kHalf == Half::bf16)}
                                                              << 16;
#endif
}

// a / b within 2 units in the last place where b is a normal number below 2^126.
__device__ __forceinline__ float quotient(float a, float b) {
#if defined(__CUDACC__)
  float q;
  asm("div.approx.f32 %0, %1, %2;" : "=f"(q) : "f"(a), "f"(b));
  return q;
#else
  return a / b;
#endif
}

// 1 / x within 1 unit in the last place where x and 1 / x are normal numbers.
__device__ __forceinline__ float reciprocal(float x) {
#if defined(__CUDACC__)
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
#else
  return 1.0f / x;
#endif
}

#if !defined(__CUDACC__)
// The meaning of mma_half(), `words` being a and b. Not inlined: the kernels hold hundreds of them.
inline void cuda_host_mma_half(float (&c)[4], const std::uint32_t (&words)[6], bool bf16) {
  const cuda_host::WarpWords<6> warp(words, "mma.m16n8k16");
  cuda_host::add_half_products(c, warp.lanes(), cuda_host::lane(), bf16);
}
#endif

// Matrix product of a warp, c += a b, m16n8k16: products are exact and summed in fp32. With group = lane / 4 and
// quad = lane % 4, a word holds two neighbors along k:
//
//   a[i]   row group + 8*(i%2),   k 8*(i/2) + 2*quad ..
//   b[i]   column group,          k 8*i + 2*quad ..
//   c[i]   row group + 8*(i/2),   column 2*quad + i%2
//
// All lanes must call.
template <Half kHalf>
__device__ __forceinline__ void mma_half(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
#if defined(__CUDACC__)
  if constexpr (kHalf == Half::f16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  cuda_host_mma_half(c, {a[0], a[1], a[2], a[3], b0, b1}, kHalf == Half::bf16);
#endif
}

}  // namespace qcore::ptx
