#pragma once

#include <immintrin.h>

#include "lut/table_arrays.h"

// 32 lanes in two AVX-512 vectors; see numerics/lanes.h. Two, because a look-up in registers takes 32 16-bit indices.
// In an unnamed namespace, like everything that is compiled for one instruction set.
namespace qcore {
namespace {

struct Avx512Lanes {
  static constexpr int kWidth = 32;
  struct F {
    __m512 a, b;
  };
  struct I {
    __m512i a, b;
  };
  struct M {
    __mmask16 a, b;
  };

  QCORE_NUMERIC F set(float x) { return {_mm512_set1_ps(x), _mm512_set1_ps(x)}; }
  QCORE_NUMERIC I set(std::int32_t x) { return {_mm512_set1_epi32(x), _mm512_set1_epi32(x)}; }

  QCORE_NUMERIC F add(F x, F y) { return {_mm512_add_ps(x.a, y.a), _mm512_add_ps(x.b, y.b)}; }
  QCORE_NUMERIC F sub(F x, F y) { return {_mm512_sub_ps(x.a, y.a), _mm512_sub_ps(x.b, y.b)}; }
  QCORE_NUMERIC F mul(F x, F y) { return {_mm512_mul_ps(x.a, y.a), _mm512_mul_ps(x.b, y.b)}; }
  QCORE_NUMERIC F fma(F x, F y, F z) { return {_mm512_fmadd_ps(x.a, y.a, z.a), _mm512_fmadd_ps(x.b, y.b, z.b)}; }
  QCORE_NUMERIC F floor(F x) { return {_mm512_roundscale_ps(x.a, kDown), _mm512_roundscale_ps(x.b, kDown)}; }
  QCORE_NUMERIC F round_even(F x) { return {_mm512_roundscale_ps(x.a, kEven), _mm512_roundscale_ps(x.b, kEven)}; }

  QCORE_NUMERIC F at_least(F x, F low) { return {_mm512_max_ps(x.a, low.a), _mm512_max_ps(x.b, low.b)}; }
  QCORE_NUMERIC F at_most(F x, F high) { return {_mm512_min_ps(x.a, high.a), _mm512_min_ps(x.b, high.b)}; }

  QCORE_NUMERIC F limited(F x, F bound) {
    constexpr int kSmallerMagnitudeSignOfFirst = 0b0010;
    return {_mm512_range_ps(x.a, bound.a, kSmallerMagnitudeSignOfFirst),
            _mm512_range_ps(x.b, bound.b, kSmallerMagnitudeSignOfFirst)};
  }

  QCORE_NUMERIC I truncate(F x) { return {_mm512_cvttps_epi32(x.a), _mm512_cvttps_epi32(x.b)}; }
  QCORE_NUMERIC F to_float(I i) { return {_mm512_cvtepi32_ps(i.a), _mm512_cvtepi32_ps(i.b)}; }
  QCORE_NUMERIC I bits(F x) { return {_mm512_castps_si512(x.a), _mm512_castps_si512(x.b)}; }
  QCORE_NUMERIC F from_bits(I i) { return {_mm512_castsi512_ps(i.a), _mm512_castsi512_ps(i.b)}; }

  QCORE_NUMERIC I add(I x, I y) { return {_mm512_add_epi32(x.a, y.a), _mm512_add_epi32(x.b, y.b)}; }
  QCORE_NUMERIC I sub(I x, I y) { return {_mm512_sub_epi32(x.a, y.a), _mm512_sub_epi32(x.b, y.b)}; }
  QCORE_NUMERIC I bit_and(I x, I y) { return {_mm512_and_si512(x.a, y.a), _mm512_and_si512(x.b, y.b)}; }
  QCORE_NUMERIC I join(I x, I mask, I y) {  // (x & mask) | y
    constexpr int kAndOr = 0xea;
    return {_mm512_ternarylogic_epi32(x.a, mask.a, y.a, kAndOr), _mm512_ternarylogic_epi32(x.b, mask.b, y.b, kAndOr)};
  }
  QCORE_NUMERIC I bit_or(I x, I y) { return {_mm512_or_si512(x.a, y.a), _mm512_or_si512(x.b, y.b)}; }
  QCORE_NUMERIC I larger(I x, I y) { return {_mm512_max_epi32(x.a, y.a), _mm512_max_epi32(x.b, y.b)}; }
  template <int kBits>
  QCORE_NUMERIC I shift_left(I x) {
    return {_mm512_slli_epi32(x.a, kBits), _mm512_slli_epi32(x.b, kBits)};
  }
  template <int kBits>
  QCORE_NUMERIC I shift_right(I x) {
    return {_mm512_srai_epi32(x.a, kBits), _mm512_srai_epi32(x.b, kBits)};
  }

  QCORE_NUMERIC M less(F x, F y) {
    return {_mm512_cmp_ps_mask(x.a, y.a, _CMP_LT_OQ), _mm512_cmp_ps_mask(x.b, y.b, _CMP_LT_OQ)};
  }
  QCORE_NUMERIC M is_nan(F x) {
    return {_mm512_cmp_ps_mask(x.a, x.a, _CMP_UNORD_Q), _mm512_cmp_ps_mask(x.b, x.b, _CMP_UNORD_Q)};
  }
  QCORE_NUMERIC std::uint32_t any_nan(F x) { return _mm512_cmp_ps_mask(x.a, x.b, _CMP_UNORD_Q); }
  QCORE_NUMERIC M either(M x, M y) { return {_kor_mask16(x.a, y.a), _kor_mask16(x.b, y.b)}; }
  QCORE_NUMERIC F select(M m, F yes, F no) {
    return {_mm512_mask_blend_ps(m.a, no.a, yes.a), _mm512_mask_blend_ps(m.b, no.b, yes.b)};
  }
  QCORE_NUMERIC I select(M m, I yes, I no) {
    return {_mm512_mask_blend_epi32(m.a, no.a, yes.a), _mm512_mask_blend_epi32(m.b, no.b, yes.b)};
  }

  QCORE_NUMERIC F load(const float* x) { return {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)}; }
  QCORE_NUMERIC F load_half(const std::uint16_t* x) {
    return {_mm512_cvtph_ps(load256(x)), _mm512_cvtph_ps(load256(x + 16))};
  }
  QCORE_NUMERIC F load_bfloat(const std::uint16_t* x) {
    return {widen_bfloat(load256(x)), widen_bfloat(load256(x + 16))};
  }

  QCORE_NUMERIC void store(float* y, F x) {
    _mm512_storeu_ps(y, x.a);
    _mm512_storeu_ps(y + 16, x.b);
  }
  QCORE_NUMERIC void store(std::int32_t* y, I x) {
    _mm512_storeu_si512(y, x.a);
    _mm512_storeu_si512(y + 16, x.b);
  }
  QCORE_NUMERIC I load(const std::int32_t* x) { return {_mm512_loadu_si512(x), _mm512_loadu_si512(x + 16)}; }
  QCORE_NUMERIC void stream(float* y, F x) {  // y is aligned to 64 bytes
    _mm512_stream_ps(y, x.a);
    _mm512_stream_ps(y + 16, x.b);
  }
  QCORE_NUMERIC void store_half(std::uint16_t* y, F x) { _mm512_storeu_si512(y, halves(x)); }
  QCORE_NUMERIC void stream_half(std::uint16_t* y, F x) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(y), halves(x));
  }
  QCORE_NUMERIC void store_bfloat(std::uint16_t* y, F x) { _mm512_storeu_si512(y, bfloats(x)); }
  QCORE_NUMERIC void stream_bfloat(std::uint16_t* y, F x) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(y), bfloats(x));
  }
  QCORE_NUMERIC void fence() { _mm_sfence(); }  // after the last of what streams

 private:
  static constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  static constexpr int kEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  QCORE_NUMERIC __m256i load256(const std::uint16_t* x) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  }
  QCORE_NUMERIC __m512 widen_bfloat(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  QCORE_NUMERIC __m512i halves(F x) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(x.a, kEven)), _mm512_cvtps_ph(x.b, kEven), 1);
  }
  // Half to even. (The processor's own conversion takes subnormal numbers for zero.) A NaN keeps its upper bits: those
  // of the one that lut_eval gives survive.
  QCORE_NUMERIC __m512i rounded_bfloat(__m512 x) {
    const __m512i u = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u);
  }
  QCORE_NUMERIC __m512i bfloats(F x) {
    // The upper words of 32 numbers.
    alignas(64) static constexpr std::uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                             23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                             45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return _mm512_permutex2var_epi16(rounded_bfloat(x.a), _mm512_load_si512(kUpper), rounded_bfloat(x.b));
  }
};

// 259 entries in 18 registers.
struct RegisterEntries512 {
  using L = Avx512Lanes;

  QCORE_INLINE explicit RegisterEntries512(const LutRegisters& table)
      : edges(held(table.edges)), next_edges(held(table.edges_next)) {
    for (int i = 0; i < 8; ++i) inner[i] = held(table.inner + 32 * i), next[i] = held(table.inner_next + 32 * i);
  }

  struct Entry {
    __m512i value, next;  // fp16
  };

  // Takes the lower words, whatever power is above them.
  template <bool kPower>
  QCORE_NUMERIC __m512i pack(L::I q) {
    alignas(64) static constexpr std::uint16_t kLower[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                                                             22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42,
                                                             44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
    return _mm512_permutex2var_epi16(q.a, _mm512_load_si512(kLower), q.b);
  }
  QCORE_INLINE Entry find(__m512i words) const {
    const __mmask32 upper = _mm512_test_epi16_mask(words, _mm512_set1_epi16(128));
    const __mmask32 odd = _mm512_test_epi16_mask(words, _mm512_set1_epi16(64));
    const __mmask32 edge = _mm512_cmpgt_epu16_mask(words, _mm512_set1_epi16(255));
    return {look_up(words, inner, edges, upper, odd, edge), look_up(words, next, next_edges, upper, odd, edge)};
  }
  QCORE_NUMERIC void values(const Entry& found, L::F& value, L::F& delta) {
    value = floats(found.value);
    delta = L::sub(floats(found.next), value);
  }

 private:
  // Loads into a register that the compiler keeps, because a loop that loads all of them is limited by its loads.
  QCORE_NUMERIC __m512i held(const std::uint16_t* from) {
    __m512i words = _mm512_load_si512(from);
    asm("" : "+v"(words));
    return words;
  }
  QCORE_NUMERIC __m512i look_up(__m512i q, const __m512i* inner, __m512i edges, __mmask32 upper, __mmask32 odd,
                                __mmask32 edge) {
    __m512i quarter[4];
    for (int i = 0; i < 4; ++i) quarter[i] = _mm512_permutex2var_epi16(inner[2 * i], q, inner[2 * i + 1]);
    const __m512i low = _mm512_mask_mov_epi16(quarter[0], odd, quarter[1]);
    const __m512i high = _mm512_mask_mov_epi16(quarter[2], odd, quarter[3]);
    return _mm512_mask_permutexvar_epi16(_mm512_mask_mov_epi16(low, upper, high), edge, q, edges);
  }
  QCORE_NUMERIC L::F floats(__m512i halves) {
    return {_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))};
  }

  __m512i inner[8], next[8], edges, next_edges;
};

// A table that fits the registers: no access to memory depends on x.
// kUnit: it is for exp and has all of [0, 1], whose cells it has.
template <bool kUnit>
struct RegisterTable512 {
  using L = Avx512Lanes;

  QCORE_INLINE explicit RegisterTable512(const LutRegisters& table) : t(&table) {
    next_cuts = _mm512_load_ps(table.next_cuts);
    cuts = _mm512_load_ps(table.cuts);
    scales = _mm512_load_ps(table.scales);
    firsts = _mm512_load_ps(table.firsts);
  }

  QCORE_INLINE L::F low() const { return L::set(t->low); }
  QCORE_INLINE L::F high() const { return L::set(t->high); }
  QCORE_INLINE L::I first_interval(L::F x) const { return first_of(cell(x)); }
  QCORE_INLINE numerics::LutFound<L> find_binary(L::F z) const {
    if constexpr (!kUnit) return numerics::lut_found_binary<L>(z, *this);
    // The lowest bit of a float of this size is 2^-6: those of the sum are n + 127 and the cell.
    const __m512 base = _mm512_set1_ps(131072.0f + 127.0f);
    const L::I sum{_mm512_castps_si512(_mm512_add_round_ps(z.a, base, kDown)),
                   _mm512_castps_si512(_mm512_add_round_ps(z.b, base, kDown))};
    const L::F whole = L::from_bits(L::bit_and(sum, L::set(~63)));
    numerics::LutFound<L> found;
    found.inside = L::sub(z, L::sub(whole, {base, base}));
    found.power = L::shift_left<23 - 6>(sum);
    found.i = {first_in(sum.a), first_in(sum.b)};  // in the lower words; the upper ones mean nothing
    return found;
  }
  QCORE_INLINE L::I interval_from(L::F x, L::I i) const {
    // The upper words; permutations take the lowest 4 bits.
    if constexpr (!kUnit) i.b = _mm512_madd_epi16(i.b, _mm512_set1_epi32(1 << 16));
    i = {next(x.a, i.a), next(x.b, i.b)};
    for (int step = 1; step < t->cell_steps; ++step) i = {next(x.a, i.a), next(x.b, i.b)};
    return i;
  }
  QCORE_INLINE L::F position(L::F x, L::I i) const { return L::mul(L::sub(x, permuted(i, cuts)), permuted(i, scales)); }
  // Behind 2^23 + first_i a sum has no fraction bits, and its lowest bits are q.
  QCORE_INLINE void place(L::F p, L::I i, L::I& q, L::F& a) const {
    const L::F first = permuted(i, firsts);
    const L::F count{_mm512_add_round_ps(p.a, first.a, kDown), _mm512_add_round_ps(p.b, first.b, kDown)};
    q = L::bits(count);
    a = {_mm512_reduce_ps(p.a, kDown), _mm512_reduce_ps(p.b, kDown)};
  }
  QCORE_INLINE RegisterEntries512 entries() const { return RegisterEntries512(*t); }

 private:
  static constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  static constexpr __mmask32 kUpper = 0xaaaaaaaa;  // the upper words of 32 bits

  QCORE_INLINE L::I first_of(__m512i cell) const {
    const __m512i first = first_in(cell);
    return {first, first};
  }
  QCORE_INLINE __m512i first_in(__m512i cell) const {
    return _mm512_permutex2var_epi16(_mm512_load_si512(t->cells), cell, _mm512_load_si512(t->cells + 32));
  }
  // The cells of x.a in the lower words, those of x.b in the upper ones.
  QCORE_INLINE __m512i cell(L::F x) const {
    const __m512i words =
        _mm512_mask_blend_epi16(kUpper, _mm512_srli_epi32(_mm512_castps_si512(x.a), 16), _mm512_castps_si512(x.b));
    const __m512i magnitude = _mm512_and_si512(words, _mm512_set1_epi16(0x7fff));
    const __m512i above = _mm512_subs_epu16(magnitude, _mm512_set1_epi16(static_cast<short>(t->cell_base)));
    const __m512i number =
        _mm512_min_epu16(_mm512_mulhi_epu16(above, _mm512_set1_epi16(static_cast<short>(t->cell_factor))),
                         _mm512_set1_epi16(static_cast<short>(t->cell_limit)));
    constexpr int kOrAnd = 0xf8;  // number | sign & 32
    return _mm512_ternarylogic_epi32(number, _mm512_mulhi_epu16(words, _mm512_set1_epi16(64)), _mm512_set1_epi16(32),
                                     kOrAnd);
  }
  QCORE_INLINE __m512i next(__m512 x, __m512i i) const {
    const __mmask16 beyond = _mm512_cmp_ps_mask(x, _mm512_permutexvar_ps(i, next_cuts), _CMP_GE_OQ);
    return _mm512_mask_add_epi32(i, beyond, i, _mm512_set1_epi32(1));
  }
  QCORE_NUMERIC L::F permuted(L::I i, __m512 table) {
    return {_mm512_permutexvar_ps(i.a, table), _mm512_permutexvar_ps(i.b, table)};
  }

  const LutRegisters* t;
  __m512 next_cuts, cuts, scales, firsts;
};

// Any table: gathers.
struct MemoryTable512 : numerics::LutOneStep<Avx512Lanes, MemoryTable512> {
  using L = Avx512Lanes;
  const numerics::LutView* t;

  QCORE_INLINE explicit MemoryTable512(const numerics::LutView& view) : t(&view) {}

  QCORE_INLINE L::F low() const { return L::set(t->low()); }
  QCORE_INLINE L::F high() const { return L::set(t->high()); }
  QCORE_INLINE L::I interval(L::F x) const {
    L::I i = L::set(0);
    for (std::int32_t k = 1; k <= t->intervals; ++k) {
      const __m512 cut = _mm512_set1_ps(t->cuts[k]);
      i.a = _mm512_mask_add_epi32(i.a, _mm512_cmp_ps_mask(x.a, cut, _CMP_GE_OQ), i.a, _mm512_set1_epi32(1));
      i.b = _mm512_mask_add_epi32(i.b, _mm512_cmp_ps_mask(x.b, cut, _CMP_GE_OQ), i.b, _mm512_set1_epi32(1));
    }
    return i;
  }
  QCORE_INLINE L::F position(L::F x, L::I i) const {
    return L::at_most(L::mul(L::sub(x, gathered(i, t->cuts)), gathered(i, t->scales)), gathered(i, t->lengths));
  }
  QCORE_INLINE void place(L::F p, L::I i, L::I& q, L::F& a) const {
    const L::I j = L::truncate(p);
    q = L::add(L::I{_mm512_i32gather_epi32(i.a, t->firsts, 4), _mm512_i32gather_epi32(i.b, t->firsts, 4)}, j);
    a = L::sub(p, L::to_float(j));
  }
  QCORE_INLINE void entry(L::I q, L::F& value, L::F& delta) const {
    value = gathered(q, t->values);
    delta = gathered(q, t->deltas);
  }

 private:
  QCORE_NUMERIC L::F gathered(L::I i, const float* from) {
    return {_mm512_i32gather_ps(i.a, from, 4), _mm512_i32gather_ps(i.b, from, 4)};
  }
};

}  // namespace
}  // namespace qcore
