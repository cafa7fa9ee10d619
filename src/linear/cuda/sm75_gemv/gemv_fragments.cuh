#pragma once

#include "linear/cuda/sm75_gemv/gemv_kernels.cuh"
#include "runtime/cuda/ptx_convert.cuh"

namespace qcore::gemv {

// Two products of 16 columns n and 8 rows of x each; x.w and so on are the words of columns 4*group + 0 .. 3.
template <int kBits>
struct Fragments {
  std::uint32_t first[4], second[4];

  __device__ explicit Fragments(const uint4 (&w)[chunk_loads(kBits)]) {
    if constexpr (kBits == 8) {
      set(first, w[0].x, w[0].y, w[1].x, w[1].y);
      set(second, w[0].z, w[0].w, w[1].z, w[1].w);
    } else {
      constexpr std::uint32_t kLow = 0x0f0f0f0fu;
      set(first, w[0].x & kLow, w[0].y & kLow, w[0].x >> 4 & kLow, w[0].y >> 4 & kLow);
      set(second, w[0].z & kLow, w[0].w & kLow, w[0].z >> 4 & kLow, w[0].w >> 4 & kLow);
    }
  }
  __device__ static void set(std::uint32_t (&to)[4], std::uint32_t a, std::uint32_t b, std::uint32_t c,
                             std::uint32_t d) {
    to[0] = a, to[1] = b, to[2] = c, to[3] = d;
  }
};

// The same of codes without their zero, as signed bytes: those of 4 bits times 16.
template <int kBits>
struct SignedFragments {
  static constexpr float kTimes = kBits == 8 ? 1.0f : 16.0f;
  std::uint32_t first[4], second[4];

  __device__ explicit SignedFragments(const uint4 (&w)[chunk_loads(kBits)]) {
    set(first, w[0].x, w[0].y, w[chunk_loads(kBits) - 1].x, w[chunk_loads(kBits) - 1].y);
    set(second, w[0].z, w[0].w, w[chunk_loads(kBits) - 1].z, w[chunk_loads(kBits) - 1].w);
  }

 private:
  __device__ static void set(std::uint32_t (&to)[4], std::uint32_t a, std::uint32_t b, std::uint32_t c,
                             std::uint32_t d) {
    constexpr std::uint32_t kZeros = 0x80808080u;
    if constexpr (kBits == 8) {
      to[0] = a ^ kZeros, to[1] = b ^ kZeros, to[2] = c ^ kZeros, to[3] = d ^ kZeros;
    } else {
      constexpr std::uint32_t kHigh = 0xf0f0f0f0u;
      to[0] = ptx::and_xor(a << 4, kHigh, kZeros), to[1] = ptx::and_xor(b << 4, kHigh, kZeros);
      to[2] = ptx::and_xor(c, kHigh, kZeros), to[3] = ptx::and_xor(d, kHigh, kZeros);
    }
  }
};

}  // namespace qcore::gemv
