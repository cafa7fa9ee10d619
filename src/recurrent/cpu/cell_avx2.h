#pragma once

#include "simd/vector_avx2.h"

namespace qcore {
namespace {

// Provides the operations of cell_avx512.h for 256-bit registers.
struct CellAvx2 : Avx2 {
  static constexpr bool kLooksUpLevels = false;
  struct Wide {
    Int lo, hi;
  };

  using Base = Avx2;
  using Base::add;
  using Base::bit_and;
  using Base::mul;
  using Base::sub;

  QCORE_NUMERIC Int sub(Int a, Int b) { return _mm256_sub_epi32(a, b); }
  QCORE_NUMERIC Int mul(Int a, Int b) { return _mm256_mullo_epi32(a, b); }
  QCORE_NUMERIC Int exclusive(Int a, Int b) { return _mm256_xor_si256(a, b); }
  QCORE_NUMERIC Int smaller(Int a, Int b) { return _mm256_min_epi32(a, b); }
  QCORE_NUMERIC Int larger(Int a, Int b) { return _mm256_max_epi32(a, b); }
  QCORE_NUMERIC Int sign(Int a) { return _mm256_srai_epi32(a, 31); }
  QCORE_NUMERIC Int shift_right(Int a, int n) { return _mm256_sra_epi32(a, _mm_cvtsi32_si128(n)); }
  QCORE_NUMERIC Int shift_left(Int a, int n) { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(n)); }
  QCORE_NUMERIC Int shift_right(Int a, Int n) { return _mm256_srav_epi32(a, n); }
  QCORE_NUMERIC Int shift_left(Int a, Int n) { return _mm256_sllv_epi32(a, n); }

  QCORE_NUMERIC Wide widen(Int a) {
    return {_mm256_cvtepi32_epi64(_mm256_castsi256_si128(a)), _mm256_cvtepi32_epi64(_mm256_extracti128_si256(a, 1))};
  }
  QCORE_NUMERIC Int narrow(Wide a) {
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    return _mm256_permute2x128_si256(_mm256_permutevar8x32_epi32(a.lo, even), _mm256_permutevar8x32_epi32(a.hi, even),
                                     0x20);
  }
  QCORE_NUMERIC Wide all_wide(std::int64_t a) { return {_mm256_set1_epi64x(a), _mm256_set1_epi64x(a)}; }
  QCORE_NUMERIC Wide load_wide(const std::int64_t* p) { return {load(p), load(p + 4)}; }
  QCORE_NUMERIC Wide add(Wide a, Wide b) { return {_mm256_add_epi64(a.lo, b.lo), _mm256_add_epi64(a.hi, b.hi)}; }
  QCORE_NUMERIC Wide negative(Wide a) {
    return {_mm256_sub_epi64(_mm256_setzero_si256(), a.lo), _mm256_sub_epi64(_mm256_setzero_si256(), a.hi)};
  }
  QCORE_NUMERIC Wide bit_and(Wide a, Wide b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
  QCORE_NUMERIC Wide multiply_wide(Int a, Int b) {
    const Wide x = widen(a), y = widen(b);
    return {_mm256_mul_epi32(x.lo, y.lo), _mm256_mul_epi32(x.hi, y.hi)};
  }
  QCORE_NUMERIC Wide sign(Wide a) { return {sign64(a.lo), sign64(a.hi)}; }
  QCORE_NUMERIC Wide shift_right(Wide a, Wide n) { return {shift64(a.lo, n.lo), shift64(a.hi, n.hi)}; }
  QCORE_NUMERIC Wide shift_left(Wide a, Wide n) {
    return {_mm256_sllv_epi64(a.lo, n.lo), _mm256_sllv_epi64(a.hi, n.hi)};
  }
  QCORE_NUMERIC Wide limited(Wide a, std::int64_t lo, std::int64_t hi) {
    return {limited64(a.lo, lo, hi), limited64(a.hi, lo, hi)};
  }

  QCORE_NUMERIC Int load_words(const std::int16_t* p) {
    return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  QCORE_NUMERIC void store_words(std::int16_t* p, Int a) {
    const Int words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, a), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(words));
  }
  QCORE_NUMERIC Int load_bytes(const std::uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  QCORE_NUMERIC void store_bytes(std::uint8_t* p, Int a) {
    const Int lowest = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                                        -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const Int fours = _mm256_shuffle_epi8(a, lowest);
    const Int eight = _mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 1, 1, 1, 1, 1, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(eight));
  }

 private:
  QCORE_NUMERIC Int sign64(Int a) { return _mm256_cmpgt_epi64(_mm256_setzero_si256(), a); }
  // AVX2 shifts 64 bits to the right without their sign only: the sign's copies are added back.
  QCORE_NUMERIC Int shift64(Int a, Int n) {
    const Int top = _mm256_set1_epi64x(static_cast<long long>(std::uint64_t{1} << 63));
    return _mm256_sub_epi64(_mm256_srlv_epi64(_mm256_xor_si256(a, top), n), _mm256_srlv_epi64(top, n));
  }
  QCORE_NUMERIC Int limited64(Int a, std::int64_t lo, std::int64_t hi) {
    const Int low = _mm256_set1_epi64x(lo), high = _mm256_set1_epi64x(hi);
    const Int raised = _mm256_blendv_epi8(a, low, _mm256_cmpgt_epi64(low, a));
    return _mm256_blendv_epi8(raised, high, _mm256_cmpgt_epi64(raised, high));
  }
};

// vpmaddubsw saturates for full-range bytes, so even and odd ones are multiplied as 16-bit words.
struct DotWords {
  struct Weights {
    __m256i even, odd;
  };
  using Inputs = Weights;
  static constexpr int kMaxSums = 9;

  QCORE_NUMERIC Weights load(const std::int8_t* w) {
    const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(w));
    return {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)};
  }
  QCORE_NUMERIC Inputs spread(const std::uint8_t* u) {
    std::int32_t four;
    memcpy(&four, u, 4);
    const __m256i bytes = _mm256_set1_epi32(four);
    return {_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(bytes, 8)};
  }
  QCORE_NUMERIC void multiply(__m256i& sum, const Inputs& u, const Weights& w) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(u.even, w.even));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(u.odd, w.odd));
  }
};

}  // namespace
}  // namespace qcore
