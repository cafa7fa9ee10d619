#pragma once

#include <immintrin.h>

#include "quantize/cpu/block_search_lanes.h"

namespace qcore {
namespace {

// Eight lanes of block_search_lanes.h.
struct SearchAvx2 {
  static constexpr int kLanes = 8;
  using F = __m256;
  using Mask = __m256;
  struct Doubles {
    __m256d low, high;
  };
  using WideMask = Doubles;

  QCORE_NUMERIC F load(const float* p) { return _mm256_loadu_ps(p); }
  QCORE_NUMERIC void store(float* p, F a) { _mm256_storeu_ps(p, a); }
  QCORE_NUMERIC F set(float a) { return _mm256_set1_ps(a); }
  QCORE_NUMERIC F add(F a, F b) { return _mm256_add_ps(a, b); }
  QCORE_NUMERIC F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  QCORE_NUMERIC F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  QCORE_NUMERIC F div(F a, F b) { return _mm256_div_ps(a, b); }
  QCORE_NUMERIC F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  QCORE_NUMERIC F minus_product(F a, F b, F c) { return _mm256_fnmadd_ps(b, c, a); }
  QCORE_NUMERIC F at_least(F a, F low) { return _mm256_max_ps(a, low); }
  QCORE_NUMERIC F at_most(F a, F high) { return _mm256_min_ps(a, high); }
  QCORE_NUMERIC F as_half(F a) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  QCORE_NUMERIC F reciprocal_or_zero(F inverse, F a) {
    const F zero = set(0.0f);
    const Mask none = _mm256_or_ps(_mm256_cmp_ps(inverse, zero, _CMP_EQ_OQ), _mm256_cmp_ps(a, zero, _CMP_EQ_OQ));
    return _mm256_andnot_ps(none, div(set(1.0f), a));
  }

  QCORE_NUMERIC Mask is_finite(F a) {
    const __m256i infinity = _mm256_set1_epi32(static_cast<int>(numerics::kInfinityBits));
    const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(a), infinity);
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpeq_epi32(exponent, infinity), _mm256_set1_epi32(-1)));
  }
  QCORE_NUMERIC Mask is_nonzero(F a) { return _mm256_cmp_ps(a, set(0.0f), _CMP_NEQ_OQ); }
  QCORE_NUMERIC Mask greater(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
  QCORE_NUMERIC Mask both(Mask a, Mask b) { return _mm256_and_ps(a, b); }
  QCORE_NUMERIC F round_even(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  QCORE_NUMERIC bool any(Mask a) { return _mm256_movemask_ps(a) != 0; }
  QCORE_NUMERIC bool every(Mask a) { return _mm256_movemask_ps(a) == 0xff; }
  QCORE_NUMERIC Mask all() { return _mm256_castsi256_ps(_mm256_set1_epi32(-1)); }
  QCORE_NUMERIC F select(Mask mask, F yes, F no) { return _mm256_blendv_ps(no, yes, mask); }

  QCORE_NUMERIC F lookup(const float* table, F biased) {
    const __m256i bias = _mm256_set1_epi32(static_cast<int>(kRoundBits));
    return _mm256_i32gather_ps(table, _mm256_sub_epi32(_mm256_castps_si256(biased), bias), sizeof *table);
  }
  QCORE_NUMERIC void store_codes(std::int8_t* to, F a) {
    const __m256i wide = _mm256_cvtps_epi32(a);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
  }

  QCORE_NUMERIC Doubles set_doubles(double a) { return {_mm256_set1_pd(a), _mm256_set1_pd(a)}; }
  QCORE_NUMERIC Doubles to_doubles(F a) {
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))};
  }
  QCORE_NUMERIC F to_floats(Doubles a) { return _mm256_set_m128(_mm256_cvtpd_ps(a.high), _mm256_cvtpd_ps(a.low)); }
  QCORE_NUMERIC Doubles add(Doubles a, Doubles b) {
    return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)};
  }
  QCORE_NUMERIC Doubles sub(Doubles a, Doubles b) {
    return {_mm256_sub_pd(a.low, b.low), _mm256_sub_pd(a.high, b.high)};
  }
  QCORE_NUMERIC Doubles mul(Doubles a, Doubles b) {
    return {_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)};
  }
  QCORE_NUMERIC Doubles fma(Doubles a, Doubles b, Doubles c) {
    return {_mm256_fmadd_pd(a.low, b.low, c.low), _mm256_fmadd_pd(a.high, b.high, c.high)};
  }
  QCORE_NUMERIC Doubles minus_product(Doubles a, Doubles b, Doubles c) {
    return {_mm256_fnmadd_pd(b.low, c.low, a.low), _mm256_fnmadd_pd(b.high, c.high, a.high)};
  }
  QCORE_NUMERIC Doubles load_doubles(const double* p) { return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)}; }
  QCORE_NUMERIC Doubles div(Doubles a, Doubles b) {
    return {_mm256_div_pd(a.low, b.low), _mm256_div_pd(a.high, b.high)};
  }
  QCORE_NUMERIC double total(Doubles a) {
    const __m256d four = _mm256_add_pd(a.low, a.high);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
  QCORE_NUMERIC WideMask is_less(Doubles a, Doubles b) {
    return {_mm256_cmp_pd(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_pd(a.high, b.high, _CMP_LT_OQ)};
  }
  QCORE_NUMERIC WideMask both(WideMask a, WideMask b) {
    return {_mm256_and_pd(a.low, b.low), _mm256_and_pd(a.high, b.high)};
  }
  QCORE_NUMERIC Doubles select(WideMask mask, Doubles yes, Doubles no) {
    return {_mm256_blendv_pd(no.low, yes.low, mask.low), _mm256_blendv_pd(no.high, yes.high, mask.high)};
  }
  QCORE_NUMERIC Mask narrow_mask(WideMask mask) {
    const __m256 even = _mm256_shuffle_ps(_mm256_castpd_ps(mask.low), _mm256_castpd_ps(mask.high), 0x88);
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
  }
  QCORE_NUMERIC WideMask wide_mask(Mask mask) {
    const __m256i bits = _mm256_castps_si256(mask);
    return {_mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(bits))),
            _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm256_extracti128_si256(bits, 1)))};
  }
};

}  // namespace
}  // namespace qcore
