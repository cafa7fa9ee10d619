#pragma once

#include "simd/vector_avx512.h"

// Provides the operations of lanes_avx2.h with 16 lanes.
namespace qcore {
namespace {

struct Avx512Lanes : Avx512 {
  using F = __m512;
  using I = __m512i;
  using M = __mmask16;

  QCORE_NUMERIC F set(float x) { return _mm512_set1_ps(x); }
  QCORE_NUMERIC I set(std::int32_t x) { return _mm512_set1_epi32(x); }
  QCORE_NUMERIC F div(F x, F y) { return _mm512_div_ps(x, y); }
  QCORE_NUMERIC F at_least(F x, F low) { return _mm512_max_ps(x, low); }
  QCORE_NUMERIC F at_most(F x, F high) { return _mm512_min_ps(x, high); }

  QCORE_NUMERIC I bits(F x) { return _mm512_castps_si512(x); }
  QCORE_NUMERIC F from_bits(I x) { return _mm512_castsi512_ps(x); }
  QCORE_NUMERIC F add(F x, F y) { return _mm512_add_ps(x, y); }
  QCORE_NUMERIC I add(I x, I y) { return _mm512_add_epi32(x, y); }
  QCORE_NUMERIC I bit_and(I x, I y) { return _mm512_and_si512(x, y); }
  QCORE_NUMERIC I bit_or(I x, I y) { return _mm512_or_si512(x, y); }
  template <int kBits>
  QCORE_NUMERIC I shift_left(I x) {
    return _mm512_slli_epi32(x, kBits);
  }

  QCORE_NUMERIC M less(F x, F y) { return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ); }
  QCORE_NUMERIC F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }

  // Over all lanes.
  QCORE_NUMERIC float largest(F x) { return _mm512_reduce_max_ps(x); }
  QCORE_NUMERIC std::int32_t largest(I x) { return _mm512_reduce_max_epi32(x); }

  QCORE_NUMERIC void store_bfloat(void* p, F x) {
    const I u = bits(x);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const I rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    const I quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const I chosen = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
  }

  QCORE_NUMERIC F load_codes(const std::int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  QCORE_NUMERIC void store_codes(std::int8_t* p, I x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
  }
};

}  // namespace
}  // namespace qcore
