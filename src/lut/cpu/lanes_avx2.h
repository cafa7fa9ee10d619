#pragma once

#include <immintrin.h>

#include "lut/table_arrays.h"

// 8 lanes in an AVX2 vector; see numerics/lanes.h. In an unnamed namespace, like everything that is compiled for one
// instruction set.
namespace qcore {
namespace {

struct Avx2Lanes {
  static constexpr int kWidth = 8;
  using F = __m256;
  using I = __m256i;
  struct M {
    __m256 bits;
  };

  QCORE_NUMERIC F set(float x) { return _mm256_set1_ps(x); }
  QCORE_NUMERIC I set(std::int32_t x) { return _mm256_set1_epi32(x); }

  QCORE_NUMERIC F add(F x, F y) { return _mm256_add_ps(x, y); }
  QCORE_NUMERIC F sub(F x, F y) { return _mm256_sub_ps(x, y); }
  QCORE_NUMERIC F mul(F x, F y) { return _mm256_mul_ps(x, y); }
  QCORE_NUMERIC F fma(F x, F y, F z) { return _mm256_fmadd_ps(x, y, z); }
  QCORE_NUMERIC F floor(F x) { return _mm256_floor_ps(x); }
  QCORE_NUMERIC F round_even(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

  QCORE_NUMERIC F at_least(F x, F low) { return _mm256_max_ps(x, low); }
  QCORE_NUMERIC F at_most(F x, F high) { return _mm256_min_ps(x, high); }

  QCORE_NUMERIC F limited(F x, F bound) { return at_most(at_least(x, sub(set(0.0f), bound)), bound); }

  QCORE_NUMERIC I truncate(F x) { return _mm256_cvttps_epi32(x); }
  QCORE_NUMERIC F to_float(I i) { return _mm256_cvtepi32_ps(i); }
  QCORE_NUMERIC I bits(F x) { return _mm256_castps_si256(x); }
  QCORE_NUMERIC F from_bits(I i) { return _mm256_castsi256_ps(i); }

  QCORE_NUMERIC I add(I x, I y) { return _mm256_add_epi32(x, y); }
  QCORE_NUMERIC I sub(I x, I y) { return _mm256_sub_epi32(x, y); }
  QCORE_NUMERIC I bit_and(I x, I y) { return _mm256_and_si256(x, y); }
  QCORE_NUMERIC I join(I x, I mask, I y) { return bit_or(bit_and(x, mask), y); }
  QCORE_NUMERIC I bit_or(I x, I y) { return _mm256_or_si256(x, y); }
  QCORE_NUMERIC I larger(I x, I y) { return _mm256_max_epi32(x, y); }
  template <int kBits>
  QCORE_NUMERIC I shift_left(I x) {
    return _mm256_slli_epi32(x, kBits);
  }
  template <int kBits>
  QCORE_NUMERIC I shift_right(I x) {
    return _mm256_srai_epi32(x, kBits);
  }

  QCORE_NUMERIC M less(F x, F y) { return {_mm256_cmp_ps(x, y, _CMP_LT_OQ)}; }
  QCORE_NUMERIC M is_nan(F x) { return {_mm256_cmp_ps(x, x, _CMP_UNORD_Q)}; }
  QCORE_NUMERIC std::uint32_t any_nan(F x) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  }
  QCORE_NUMERIC M either(M x, M y) { return {_mm256_or_ps(x.bits, y.bits)}; }
  QCORE_NUMERIC F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m.bits); }
  QCORE_NUMERIC I select(M m, I yes, I no) {
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(no), _mm256_castsi256_ps(yes), m.bits));
  }

  QCORE_NUMERIC F load(const float* x) { return _mm256_loadu_ps(x); }
  QCORE_NUMERIC F load_half(const std::uint16_t* x) { return _mm256_cvtph_ps(load128(x)); }
  QCORE_NUMERIC F load_bfloat(const std::uint16_t* x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(x)), 16));
  }

  QCORE_NUMERIC void store(float* y, F x) { _mm256_storeu_ps(y, x); }
  QCORE_NUMERIC void store(std::int32_t* y, I x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), x); }
  QCORE_NUMERIC I load(const std::int32_t* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
  QCORE_NUMERIC void stream(float* y, F x) { _mm256_stream_ps(y, x); }
  QCORE_NUMERIC void store_half(std::uint16_t* y, F x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(y), halves(x)); }
  QCORE_NUMERIC void stream_half(std::uint16_t* y, F x) { _mm_stream_si128(reinterpret_cast<__m128i*>(y), halves(x)); }
  QCORE_NUMERIC void store_bfloat(std::uint16_t* y, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y), bfloats(x));
  }
  QCORE_NUMERIC void stream_bfloat(std::uint16_t* y, F x) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(y), bfloats(x));
  }
  QCORE_NUMERIC void fence() { _mm_sfence(); }  // after the last of what streams

 private:
  QCORE_NUMERIC __m128i load128(const std::uint16_t* x) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x)); }
  QCORE_NUMERIC __m128i halves(F x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // Half to even. A NaN keeps its upper bits: those of the one that lut_eval gives survive.
  QCORE_NUMERIC __m128i bfloats(F x) {
    const I u = bits(x);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const I rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const I upper = _mm256_srli_epi32(select(is_nan(x), u, rounded), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
  }
};

// Any table: gathers.
struct MemoryTable256 : numerics::LutOneStep<Avx2Lanes, MemoryTable256> {
  using L = Avx2Lanes;
  const numerics::LutView* t;

  QCORE_INLINE explicit MemoryTable256(const numerics::LutView& view) : t(&view) {}

  QCORE_INLINE L::F low() const { return L::set(t->low()); }
  QCORE_INLINE L::F high() const { return L::set(t->high()); }
  QCORE_INLINE L::I interval(L::F x) const {
    L::I i = L::set(0);
    for (std::int32_t k = 1; k <= t->intervals; ++k)  // a comparison's lanes are 0 or -1
      i = L::sub(i, _mm256_castps_si256(_mm256_cmp_ps(x, _mm256_broadcast_ss(t->cuts + k), _CMP_GE_OQ)));
    return i;
  }
  QCORE_INLINE L::F position(L::F x, L::I i) const {
    const L::F p = L::mul(L::sub(x, _mm256_i32gather_ps(t->cuts, i, 4)), _mm256_i32gather_ps(t->scales, i, 4));
    return L::at_most(p, _mm256_i32gather_ps(t->lengths, i, 4));
  }
  QCORE_INLINE void place(L::F p, L::I i, L::I& q, L::F& a) const {
    const L::I j = L::truncate(p);
    q = L::add(_mm256_i32gather_epi32(t->firsts, i, 4), j);
    a = L::sub(p, L::to_float(j));
  }
  QCORE_INLINE void entry(L::I q, L::F& value, L::F& delta) const {
    value = _mm256_i32gather_ps(t->values, q, 4);
    delta = _mm256_i32gather_ps(t->deltas, q, 4);
  }
};

// The same for few intervals: two permutations of 8 floats and a choice are faster than a gather.
struct PermutedTable256 : numerics::LutOneStep<Avx2Lanes, PermutedTable256> {
  using L = Avx2Lanes;

  QCORE_INLINE PermutedTable256(const numerics::LutView& view, const LutRegisters& table) : t(&view), r(&table) {}

  QCORE_INLINE L::F low() const { return L::set(r->low); }
  QCORE_INLINE L::F high() const { return L::set(r->high); }
  QCORE_INLINE L::I interval(L::F x) const {
    L::I i = L::set(0);
    for (int k = 0; k < LutRegisters::kIntervals; ++k)
      i = L::sub(i, _mm256_castps_si256(_mm256_cmp_ps(x, _mm256_load_ps(r->cut_vectors[k]), _CMP_GE_OQ)));
    return i;
  }
  QCORE_INLINE L::F position(L::F x, L::I i) const {
    return L::mul(L::sub(x, permuted(i, r->cuts)), permuted(i, r->scales));
  }
  QCORE_INLINE void place(L::F p, L::I i, L::I& q, L::F& a) const {
    const L::I j = L::truncate(p);
    const L::I counted = L::sub(L::bits(permuted(i, r->firsts)), L::bits(L::set(LutRegisters::kCount)));
    q = L::add(counted, j);
    a = L::sub(p, L::to_float(j));
  }
  QCORE_INLINE void entry(L::I q, L::F& value, L::F& delta) const {
    value = _mm256_i32gather_ps(t->values, q, 4);
    delta = _mm256_i32gather_ps(t->deltas, q, 4);
  }

 private:
  QCORE_NUMERIC L::F permuted(L::I i, const float* table) {
    const __m256 lower = _mm256_permutevar8x32_ps(_mm256_load_ps(table), i);
    const __m256 upper = _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), i);
    return _mm256_blendv_ps(lower, upper, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));  // bit 3 as the sign
  }

  const numerics::LutView* t;
  const LutRegisters* r;
};

}  // namespace
}  // namespace qcore
