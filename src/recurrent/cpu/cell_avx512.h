#pragma once

#include "recurrent/cpu/vtable.h"
#include "simd/vector_avx512.h"

namespace qcore {
namespace {

// Adds to the vectors of `linear` the operations that the fixed-point cell needs.
struct CellAvx512 : Avx512 {
  static constexpr bool kLooksUpLevels = true;
  struct Wide {  // int64 lanes
    Int lo, hi;
  };

  using Base = Avx512;
  using Base::add;
  using Base::bit_and;
  using Base::mul;
  using Base::sub;

  QCORE_NUMERIC Int sub(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  QCORE_NUMERIC Int mul(Int a, Int b) { return _mm512_mullo_epi32(a, b); }
  QCORE_NUMERIC Int exclusive(Int a, Int b) { return _mm512_xor_si512(a, b); }
  QCORE_NUMERIC Int smaller(Int a, Int b) { return _mm512_min_epi32(a, b); }
  QCORE_NUMERIC Int larger(Int a, Int b) { return _mm512_max_epi32(a, b); }
  QCORE_NUMERIC Int sign(Int a) { return _mm512_srai_epi32(a, 31); }
  QCORE_NUMERIC Int shift_right(Int a, int n) { return _mm512_sra_epi32(a, _mm_cvtsi32_si128(n)); }
  QCORE_NUMERIC Int shift_left(Int a, int n) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n)); }
  QCORE_NUMERIC Int shift_right(Int a, Int n) { return _mm512_srav_epi32(a, n); }
  QCORE_NUMERIC Int shift_left(Int a, Int n) { return _mm512_sllv_epi32(a, n); }

  QCORE_NUMERIC Wide widen(Int a) {
    return {_mm512_cvtepi32_epi64(_mm512_castsi512_si256(a)), _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(a, 1))};
  }
  QCORE_NUMERIC Int narrow(Wide a) {  // the lower halves
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(a.lo)), _mm512_cvtepi64_epi32(a.hi), 1);
  }
  QCORE_NUMERIC Wide all_wide(std::int64_t a) { return {_mm512_set1_epi64(a), _mm512_set1_epi64(a)}; }
  QCORE_NUMERIC Wide load_wide(const std::int64_t* p) { return {load(p), load(p + 8)}; }
  QCORE_NUMERIC Wide add(Wide a, Wide b) { return {_mm512_add_epi64(a.lo, b.lo), _mm512_add_epi64(a.hi, b.hi)}; }
  QCORE_NUMERIC Wide negative(Wide a) {
    return {_mm512_sub_epi64(_mm512_setzero_si512(), a.lo), _mm512_sub_epi64(_mm512_setzero_si512(), a.hi)};
  }
  QCORE_NUMERIC Wide bit_and(Wide a, Wide b) { return {_mm512_and_si512(a.lo, b.lo), _mm512_and_si512(a.hi, b.hi)}; }
  QCORE_NUMERIC Wide multiply_wide(Int a, Int b) {
    const Wide x = widen(a), y = widen(b);
    return {_mm512_mul_epi32(x.lo, y.lo), _mm512_mul_epi32(x.hi, y.hi)};
  }
  QCORE_NUMERIC Wide sign(Wide a) { return {_mm512_srai_epi64(a.lo, 63), _mm512_srai_epi64(a.hi, 63)}; }
  QCORE_NUMERIC Wide shift_right(Wide a, Wide n) {
    return {_mm512_srav_epi64(a.lo, n.lo), _mm512_srav_epi64(a.hi, n.hi)};
  }
  QCORE_NUMERIC Wide shift_left(Wide a, Wide n) {
    return {_mm512_sllv_epi64(a.lo, n.lo), _mm512_sllv_epi64(a.hi, n.hi)};
  }
  QCORE_NUMERIC Wide limited(Wide a, std::int64_t lo, std::int64_t hi) {
    const Int low = _mm512_set1_epi64(lo), high = _mm512_set1_epi64(hi);
    return {_mm512_min_epi64(_mm512_max_epi64(a.lo, low), high), _mm512_min_epi64(_mm512_max_epi64(a.hi, low), high)};
  }

  QCORE_NUMERIC Int load_words(const std::int16_t* p) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  QCORE_NUMERIC void store_words(std::int16_t* p, Int a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
  }
  QCORE_NUMERIC Int load_bytes(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  QCORE_NUMERIC void store_bytes(std::uint8_t* p, Int a) {  // the lowest of each lane
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
  }

  // table[index] for indices less 32768, in place, two vectors at a time: `codes` has an even number of them.
  static void look_up(const LevelTable& table, std::int16_t (*codes)[kLanes], int vectors) {
    const auto words = [](const std::uint16_t* p, int i) { return _mm512_loadu_si512(p + 32 * i); };
    const auto all = [](int a) { return _mm512_set1_epi16(static_cast<short>(a)); };
    const Int base0 = words(table.base, 0), base1 = words(table.base, 1), rise0 = words(table.rise, 0),
              rise1 = words(table.rise, 1);
    Int next[8];
    for (int i = 0; i < 8; ++i) next[i] = words(table.next, i);
    const Int start = all(table.start), span = all(table.span), lowest = all(table.lowest), one = all(1);
    const __m128i shift = _mm_cvtsi32_si128(table.shift), rest = _mm_cvtsi32_si128(16 - table.shift);
    for (int v = 0; v < vectors; v += 2) {
      const Int index = exclusive(load(codes[v]), all(-32768));
      const Int at = _mm512_min_epu16(_mm512_subs_epu16(index, start), span);
      const Int segment = _mm512_srl_epi16(at, shift);
      const Int risen =
          _mm512_mulhi_epu16(_mm512_sll_epi16(at, rest), _mm512_permutex2var_epi16(rise0, segment, rise1));
      const Int line = _mm512_add_epi16(_mm512_permutex2var_epi16(base0, segment, base1), risen);
      const Int level = _mm512_srli_epi16(line, 8);
      const __mmask32 upper = _mm512_movepi16_mask(line), odd = _mm512_movepi16_mask(_mm512_add_epi16(line, line));
      const auto quarter = [&](int i) { return _mm512_permutex2var_epi16(next[2 * i], level, next[2 * i + 1]); };
      const Int lower_half = _mm512_mask_mov_epi16(quarter(0), odd, quarter(1));
      const Int upper_half = _mm512_mask_mov_epi16(quarter(2), odd, quarter(3));
      const __mmask32 higher = _mm512_cmpge_epu16_mask(at, _mm512_mask_mov_epi16(lower_half, upper, upper_half));
      const Int found = _mm512_add_epi16(level, lowest);
      store(codes[v], _mm512_mask_add_epi16(found, higher, found, one));
    }
  }
};

// Dot products of four unsigned bytes, the same in every lane, with signed ones.
struct DotAvx512 {
  using Weights = __m512i;
  using Inputs = __m512i;
  static constexpr int kMaxSums = 24;  // accumulators that leave registers for the operands

  QCORE_NUMERIC Weights load(const std::int8_t* w) { return _mm512_load_si512(w); }
  QCORE_NUMERIC Inputs spread(const std::uint8_t* u) {
    std::int32_t four;
    memcpy(&four, u, 4);
    return _mm512_set1_epi32(four);
  }
  // Assembly, because g++ 12 surrounds the intrinsic with register copies when accumulators are an array.
  QCORE_NUMERIC void multiply(__m512i& sum, Inputs u, Weights w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(w));
  }
};

}  // namespace
}  // namespace qcore
