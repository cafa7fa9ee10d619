#pragma once

#include "recurrent/cpu/cell_avx2.h"
#include "simd/vnni_encoding.h"

namespace qcore {
namespace {

struct DotVnni {
  using Weights = __m256i;
  using Inputs = __m256i;
  static constexpr int kMaxSums = 9;

  QCORE_NUMERIC Weights load(const std::int8_t* w) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(w)); }
  QCORE_NUMERIC Inputs spread(const std::uint8_t* u) {
    std::int32_t four;
    memcpy(&four, u, 4);
    return _mm256_set1_epi32(four);
  }
  QCORE_NUMERIC void multiply(__m256i& sum, Inputs u, Weights w) {
    asm(QCORE_VNNI_ENCODING "vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(u), "x"(w));
  }
};

}  // namespace
}  // namespace qcore
