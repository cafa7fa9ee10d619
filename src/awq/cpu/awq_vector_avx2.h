#pragma once

#include "numerics/awq.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

// One word. Also what is left of a row that is no multiple of longer vectors.
struct AwqVector256 : Avx2 {
  using Word = AwqVector256;

  QCORE_NUMERIC Int spread(const std::uint32_t* words) {
    const Int shifts = _mm256_setr_epi32(numerics::awq_shift(0), numerics::awq_shift(1), numerics::awq_shift(2),
                                         numerics::awq_shift(3), numerics::awq_shift(4), numerics::awq_shift(5),
                                         numerics::awq_shift(6), numerics::awq_shift(7));
    return _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(*words)), shifts);
  }
  QCORE_NUMERIC Float nibbles(Int spread) {
    return _mm256_castsi256_ps(_mm256_or_si256(bit_and(spread, set1(15)), set1(numerics::kAwqBiasBits)));
  }
  QCORE_NUMERIC Float code(Int spread) {
    return sub(nibbles(spread), set1(numerics::kAwqBias + static_cast<float>(numerics::kAwqMiddle)));
  }
  template <bool stream>
  QCORE_NUMERIC void store_pair(std::uint16_t* to, Float a, Float b) {
    const __m256i halves = _mm256_set_m128i(rounded(b), rounded(a));
    if constexpr (stream)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), halves);
    else
      store(to, halves);
  }
  QCORE_NUMERIC void fence() { _mm_sfence(); }

 private:
  QCORE_NUMERIC __m128i rounded(Float a) { return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
};

}  // namespace
}  // namespace qcore
