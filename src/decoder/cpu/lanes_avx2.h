#pragma once

#include "simd/vector_avx2.h"

// 8 lanes with the operations of numerics/lanes.h that src/decoder needs, and those of simd/vector_avx2.h.
namespace qcore {
namespace {

struct Avx2Lanes : Avx2 {
  using F = __m256;
  using I = __m256i;
  struct M {
    __m256 bits;
  };

  QCORE_NUMERIC F set(float x) { return _mm256_set1_ps(x); }
  QCORE_NUMERIC I set(std::int32_t x) { return _mm256_set1_epi32(x); }
  QCORE_NUMERIC F div(F x, F y) { return _mm256_div_ps(x, y); }
  QCORE_NUMERIC F at_least(F x, F low) { return _mm256_max_ps(x, low); }
  QCORE_NUMERIC F at_most(F x, F high) { return _mm256_min_ps(x, high); }

  QCORE_NUMERIC I bits(F x) { return _mm256_castps_si256(x); }
  QCORE_NUMERIC F from_bits(I x) { return _mm256_castsi256_ps(x); }
  QCORE_NUMERIC F add(F x, F y) { return _mm256_add_ps(x, y); }
  QCORE_NUMERIC I add(I x, I y) { return _mm256_add_epi32(x, y); }
  QCORE_NUMERIC I bit_and(I x, I y) { return _mm256_and_si256(x, y); }
  QCORE_NUMERIC I bit_or(I x, I y) { return _mm256_or_si256(x, y); }
  template <int kBits>
  QCORE_NUMERIC I shift_left(I x) {
    return _mm256_slli_epi32(x, kBits);
  }

  QCORE_NUMERIC M less(F x, F y) { return {_mm256_cmp_ps(x, y, _CMP_LT_OQ)}; }
  QCORE_NUMERIC F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m.bits); }

  QCORE_NUMERIC void store_bfloat(void* p, F x) {
    const I u = bits(x);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const I rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const I quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const F nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const I upper = _mm256_srli_epi32(bits(_mm256_blendv_ps(from_bits(rounded), from_bits(quiet), nan)), 16);
    _mm_storeu_si128(static_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1)));
  }

  QCORE_NUMERIC F load_codes(const std::int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  // Stores lanes in the range of int8.
  QCORE_NUMERIC void store_codes(std::int8_t* p, I x) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
  }
};

}  // namespace
}  // namespace qcore
