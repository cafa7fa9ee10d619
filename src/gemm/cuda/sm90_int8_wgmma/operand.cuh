#pragma once

#include "gemm/cuda/sm90_int8_wgmma/stage.cuh"

namespace qcore::sm90_int8_wgmma {

// Operands a of the products of a stage. kTimes16: codes of 4 bits are multiplied by 16, which takes 1.5 instructions
// for four codes, not 3.5.
template <int kBits, bool kTimes16>
struct Weights {
  std::uint32_t a[kStageK / 32][4];

  __device__ void load(const char* weights, int group, int quad, std::uint32_t upper) {
    const uint2* from = reinterpret_cast<const uint2*>(weights) + group;  // [steps, 8 pairs of columns]
#pragma unroll
    for (int i = 0; i < kStageK / 32; ++i) {
      if constexpr (kBits == 8) {
        const uint2 low = from[(8 * i + quad) * 8], high = from[(8 * i + 4 + quad) * 8];
        a[i][0] = low.x ^ kTopBits, a[i][1] = low.y ^ kTopBits;
        a[i][2] = high.x ^ kTopBits, a[i][3] = high.y ^ kTopBits;
      } else {
        const uint2 both = from[(4 * i + quad) * 8];
        if constexpr (kTimes16) {
          const auto times16 = [&](std::uint32_t word) { return (word & upper) ^ kTopBits; };
          a[i][0] = times16(both.x << 4), a[i][1] = times16(both.y << 4);
          a[i][2] = times16(both.x), a[i][3] = times16(both.y);
          continue;
        }
        a[i][0] = from_nibbles(both.x), a[i][1] = from_nibbles(both.y);
        a[i][2] = from_nibbles(both.x >> 4), a[i][3] = from_nibbles(both.y >> 4);
      }
    }
  }
  // Stored codes are shifted by 8: adding 120 makes that 128, which the top bit takes back, and no byte overflows.
  __device__ static std::uint32_t from_nibbles(std::uint32_t word) {
    return ((word & 0x0f0f0f0fu) + 0x78787878u) ^ kTopBits;
  }
  static constexpr std::uint32_t kTopBits = 0x80808080u;
};

}  // namespace qcore::sm90_int8_wgmma
