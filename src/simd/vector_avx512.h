#pragma once

#include <immintrin.h>

#include "numerics/portable.h"

// Provides the operations of vector_avx2.h for 512-bit registers.
namespace qcore {
namespace {

struct Avx512 {
  static constexpr int kLanes = 16;
  using Int = __m512i;
  using Float = __m512;

  QCORE_NUMERIC Int load(const void* p) { return _mm512_loadu_si512(p); }
  QCORE_NUMERIC void store(void* p, Int a) { _mm512_storeu_si512(p, a); }
  QCORE_NUMERIC Float load(const float* p) { return _mm512_loadu_ps(p); }
  QCORE_NUMERIC void store(float* p, Float a) { _mm512_storeu_ps(p, a); }
  QCORE_NUMERIC Int set1(std::int32_t a) { return _mm512_set1_epi32(a); }
  QCORE_NUMERIC Float set1(float a) { return _mm512_set1_ps(a); }

  QCORE_NUMERIC Int bit_and(Int a, Int b) { return _mm512_and_si512(a, b); }
  QCORE_NUMERIC Int bit_or(Int a, Int b) { return _mm512_or_si512(a, b); }
  QCORE_NUMERIC Int shift_left_16(Int a, unsigned n) { return _mm512_slli_epi16(a, n); }
  QCORE_NUMERIC Int high_nibbles(Int a) { return bit_and(shift_right_16(a, 4), set1(0x0f0f0f0f)); }
  QCORE_NUMERIC Int add_bytes(Int a, Int b) { return _mm512_add_epi8(a, b); }
  QCORE_NUMERIC Int load_table(const void* p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  QCORE_NUMERIC Int look_up(Int table, Int indices) { return _mm512_shuffle_epi8(table, indices); }
  QCORE_NUMERIC Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
  QCORE_NUMERIC Int max(Int a, Int b) { return _mm512_max_epi32(a, b); }
  QCORE_NUMERIC Int shift_right_16(Int a, unsigned n) { return _mm512_srli_epi16(a, n); }
  QCORE_NUMERIC Int shift_right_32(Int a, unsigned n) { return _mm512_srli_epi32(a, n); }
  QCORE_NUMERIC Int shift_left_32(Int a, unsigned n) { return _mm512_slli_epi32(a, n); }
  using RowBytes = __m128i;
  QCORE_NUMERIC RowBytes load_rows(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  QCORE_NUMERIC RowBytes row_field(RowBytes a, int right, int mask) {
    const RowBytes moved = right < 0 ? _mm_slli_epi16(a, -right) : _mm_srli_epi16(a, right);
    return _mm_and_si128(moved, _mm_set1_epi8(static_cast<char>(mask)));
  }
  QCORE_NUMERIC RowBytes row_or(RowBytes a, RowBytes b) { return _mm_or_si128(a, b); }
  QCORE_NUMERIC Int widen_rows(RowBytes a, int) { return _mm512_cvtepu8_epi32(a); }
  QCORE_NUMERIC Int load_bytes(const void* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  QCORE_NUMERIC Float as_float(Int a) { return _mm512_castsi512_ps(a); }
  QCORE_NUMERIC Int as_int(Float a) { return _mm512_castps_si512(a); }

  QCORE_NUMERIC Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  QCORE_NUMERIC Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  QCORE_NUMERIC Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  QCORE_NUMERIC Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  QCORE_NUMERIC Float at_least(Float x, Float lo) { return _mm512_max_ps(lo, x); }
  QCORE_NUMERIC Float at_most(Float x, Float hi) { return _mm512_min_ps(hi, x); }

  static constexpr int kFolds = 4;
  template <int level>
  QCORE_NUMERIC Int fold_low(Int a, Int b) {
    return level == 0   ? _mm512_unpacklo_epi32(a, b)
           : level == 1 ? _mm512_unpacklo_epi64(a, b)
                        : _mm512_shuffle_i32x4(a, b, 0x88);
  }
  template <int level>
  QCORE_NUMERIC Int fold_high(Int a, Int b) {
    return level == 0   ? _mm512_unpackhi_epi32(a, b)
           : level == 1 ? _mm512_unpackhi_epi64(a, b)
                        : _mm512_shuffle_i32x4(a, b, 0xdd);
  }
  template <int level>
  QCORE_NUMERIC Float fold_low(Float a, Float b) {
    return _mm512_castsi512_ps(fold_low<level>(as_int(a), as_int(b)));
  }
  template <int level>
  QCORE_NUMERIC Float fold_high(Float a, Float b) {
    return _mm512_castsi512_ps(fold_high<level>(as_int(a), as_int(b)));
  }

  QCORE_NUMERIC Float to_float(Int a) { return _mm512_cvtepi32_ps(a); }
  // Prepares the values of the 16 codes of 4 bits for code_at().
  static constexpr bool kLooksUpNibbles = true;
  QCORE_NUMERIC Float nibbles(const float* numbers) { return load(numbers); }

  // The number that bits [shift, shift + Bits) of each lane stand for. Nibbles are looked up: a permutation's index has
  // four bits. Bytes, which stand for themselves less 128, become floats as the lowest bits of 2^23.
  template <int Bits>
  QCORE_NUMERIC Float code_at(Int stored, int shift, Float nibbles) {
    const Int low = shift ? shift_right_32(stored, static_cast<unsigned>(shift)) : stored;
    if constexpr (Bits == 4) {
      return _mm512_permutexvar_ps(low, nibbles);
    } else {
      constexpr int kOrOfAnd = 0xf8;  // a | (b & c)
      const Int bits = _mm512_ternarylogic_epi32(set1(0x4b000000), low, set1(0xff), kOrOfAnd);
      return sub(_mm512_castsi512_ps(bits), set1(8388608.0f + 128.0f));
    }
  }
  QCORE_NUMERIC Int to_int(Float a) { return _mm512_cvtps_epi32(a); }

  QCORE_NUMERIC Float load_half(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  QCORE_NUMERIC Float load_bfloat(const void* p) {
    const __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  QCORE_NUMERIC void store_half(void* p, Float a) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // numerics::float_to_bfloat() in each lane.
  QCORE_NUMERIC void store_bfloat(void* p, Float a) {
    const Int bits = as_int(a), high = shift_right_32(bits, 16);
    const Int rounded = shift_right_32(add(add(bits, set1(0x7fff)), bit_and(high, set1(1))), 16);
    const Int quiet = _mm512_or_si512(high, set1(0x40));
    const Int result = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(result));
  }
  QCORE_NUMERIC __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1); }
  QCORE_NUMERIC Float load_first(const float* p, int count) { return _mm512_maskz_loadu_ps(first_lanes(count), p); }
  QCORE_NUMERIC Int keep_first(Int a, int count) { return _mm512_maskz_mov_epi32(first_lanes(count), a); }

  QCORE_NUMERIC Int narrow_to_bytes(const Int (&parts)[4]) {
    const __m512i bytes =
        _mm512_packs_epi16(_mm512_packs_epi32(parts[0], parts[1]), _mm512_packs_epi32(parts[2], parts[3]));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
  }
  QCORE_NUMERIC Int narrow_to_words(const Int (&parts)[2]) {
    const __m512i words =
        _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packs_epi32(parts[0], parts[1]));
    return _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(words, 0xd8), 0xd8);
  }
};

}  // namespace
}  // namespace qcore
