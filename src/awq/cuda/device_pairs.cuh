#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_half.cuh"

// The columns of a word as pairs of fp16 numbers, by their bits: a nibble in the lowest place of 1024's fraction is
// 1024 + u, one place of a nibble higher it is 1024 + 16 u.
namespace qcore {

constexpr int kAwqPairs = 4;  // of a word: columns 0 and 1, 2 and 3, ...

constexpr std::uint32_t kAwq1024 = 0x64006400u, kAwqOne = 0x3c003c00u, kAwqSixteenth = 0x2c002c00u,
                        kAwqMinusOne = 0xbc00bc00u, kAwqMinus64 = 0xd400d400u, kAwqMinus1024 = 0xe400e400u,
                        kAwqMinusZero = 0x80008000u;

__device__ __forceinline__ std::uint32_t awq_fma(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  return ptx::fma_pair<ptx::Half::f16>(a, b, c);
}

// u + addend of pair `kPair`, where the addend holds -1024 or -64 as well.
template <int kPair>
__device__ __forceinline__ std::uint32_t awq_pair(std::uint32_t word, std::uint32_t addend) {
  const std::uint32_t low = kPair < 2 ? word : word >> 8;
  if constexpr (kPair % 2 == 0)
    return awq_fma(ptx::and_or(low, 0x000f000fu, kAwq1024), kAwqOne, addend);
  else
    return awq_fma(ptx::and_or(low, 0x00f000f0u, kAwq1024), kAwqSixteenth, addend);
}

// Returns the addend that turns a pair of a word into u - z: exact, as all integers up to 2048 are.
template <int kPair>
__device__ __forceinline__ std::uint32_t awq_addend(std::uint32_t zeros) {
  constexpr std::uint32_t kBias = kPair % 2 == 0 ? kAwqMinus1024 : kAwqMinus64;
  return awq_fma(awq_pair<kPair>(zeros, kBias), kAwqMinusOne, kBias);
}

// A group's zeros and scales of one word's columns.
struct AwqColumns {
  std::uint32_t addends[kAwqPairs], scales[kAwqPairs];

  __device__ __forceinline__ AwqColumns(std::uint32_t zeros, const uint4& s)
      : addends{awq_addend<0>(zeros), awq_addend<1>(zeros), awq_addend<2>(zeros), awq_addend<3>(zeros)},
        scales{s.x, s.y, s.z, s.w} {}

  // (u - z) * s of 8 columns. A product with -0 added keeps its sign.
  __device__ __forceinline__ uint4 weights(std::uint32_t word) const {
    uint4 to;
    to.x = awq_fma(awq_pair<0>(word, addends[0]), scales[0], kAwqMinusZero);
    to.y = awq_fma(awq_pair<1>(word, addends[1]), scales[1], kAwqMinusZero);
    to.z = awq_fma(awq_pair<2>(word, addends[2]), scales[2], kAwqMinusZero);
    to.w = awq_fma(awq_pair<3>(word, addends[3]), scales[3], kAwqMinusZero);
    return to;
  }
};

}  // namespace qcore
