#pragma once

#include <immintrin.h>

#include "numerics/portable.h"

// The few vector operations that the tiles are written in, for 256-bit registers. In an unnamed namespace, like
// everything that is compiled for one instruction set: the linker must not merge it with another set's.
namespace qcore {
namespace {

struct Avx2 {
  static constexpr int kLanes = 8;
  using Int = __m256i;
  using Float = __m256;

  QCORE_NUMERIC Int load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  QCORE_NUMERIC void store(void* p, Int a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
  QCORE_NUMERIC Float load(const float* p) { return _mm256_loadu_ps(p); }
  QCORE_NUMERIC void store(float* p, Float a) { _mm256_storeu_ps(p, a); }
  QCORE_NUMERIC Int set1(std::int32_t a) { return _mm256_set1_epi32(a); }
  QCORE_NUMERIC Float set1(float a) { return _mm256_set1_ps(a); }

  QCORE_NUMERIC Int bit_and(Int a, Int b) { return _mm256_and_si256(a, b); }
  QCORE_NUMERIC Int bit_or(Int a, Int b) { return _mm256_or_si256(a, b); }
  QCORE_NUMERIC Int shift_left_16(Int a, int n) { return _mm256_slli_epi16(a, n); }
  QCORE_NUMERIC Int high_nibbles(Int a) { return bit_and(shift_right_16(a, 4), set1(0x0f0f0f0f)); }  // of each byte
  QCORE_NUMERIC Int add_bytes(Int a, Int b) { return _mm256_add_epi8(a, b); }
  // 16 bytes, for look_up(table, indices below 16) of each byte.
  QCORE_NUMERIC Int load_table(const void* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  QCORE_NUMERIC Int look_up(Int table, Int indices) { return _mm256_shuffle_epi8(table, indices); }
  QCORE_NUMERIC Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
  QCORE_NUMERIC Int max(Int a, Int b) { return _mm256_max_epi32(a, b); }
  QCORE_NUMERIC Int shift_right_16(Int a, int n) { return _mm256_srli_epi16(a, n); }
  QCORE_NUMERIC Int shift_right_32(Int a, int n) { return _mm256_srli_epi32(a, n); }
  QCORE_NUMERIC Int shift_left_32(Int a, int n) { return _mm256_slli_epi32(a, n); }
  // A byte for each of a panel's 16 rows: fields of them, shifted right (left, if `right` is negative) and masked.
  using RowBytes = __m128i;
  QCORE_NUMERIC RowBytes load_rows(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  QCORE_NUMERIC RowBytes row_field(RowBytes a, int right, int mask) {
    const RowBytes moved = right < 0 ? _mm_slli_epi16(a, -right) : _mm_srli_epi16(a, right);
    return _mm_and_si128(moved, _mm_set1_epi8(static_cast<char>(mask)));
  }
  QCORE_NUMERIC RowBytes row_or(RowBytes a, RowBytes b) { return _mm_or_si128(a, b); }
  QCORE_NUMERIC Int widen_rows(RowBytes a, int part) { return _mm256_cvtepu8_epi32(part ? _mm_srli_si128(a, 8) : a); }
  // Bytes of `kLanes` neighbors.
  QCORE_NUMERIC Int load_bytes(const void* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }
  QCORE_NUMERIC Float as_float(Int a) { return _mm256_castsi256_ps(a); }
  QCORE_NUMERIC Int as_int(Float a) { return _mm256_castps_si256(a); }

  QCORE_NUMERIC Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  QCORE_NUMERIC Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  QCORE_NUMERIC Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  QCORE_NUMERIC Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  // With a NaN in x these return x: the second operand of minps and maxps is what an unordered comparison gives.
  QCORE_NUMERIC Float at_least(Float x, Float lo) { return _mm256_max_ps(lo, x); }
  QCORE_NUMERIC Float at_most(Float x, Float hi) { return _mm256_min_ps(hi, x); }

  // Two vectors' lanes brought together, half of each: after kFolds levels, each of which halves the number of vectors,
  // lane i holds what was in all lanes of the i-th. Which lanes meet does not matter to those who combine them.
  static constexpr int kFolds = 3;
  template <int level>
  QCORE_NUMERIC Int fold_low(Int a, Int b) {
    return level == 0   ? _mm256_unpacklo_epi32(a, b)
           : level == 1 ? _mm256_unpacklo_epi64(a, b)
                        : _mm256_permute2x128_si256(a, b, 0x20);
  }
  template <int level>
  QCORE_NUMERIC Int fold_high(Int a, Int b) {
    return level == 0   ? _mm256_unpackhi_epi32(a, b)
           : level == 1 ? _mm256_unpackhi_epi64(a, b)
                        : _mm256_permute2x128_si256(a, b, 0x31);
  }
  template <int level>
  QCORE_NUMERIC Float fold_low(Float a, Float b) {
    return _mm256_castsi256_ps(fold_low<level>(as_int(a), as_int(b)));
  }
  template <int level>
  QCORE_NUMERIC Float fold_high(Float a, Float b) {
    return _mm256_castsi256_ps(fold_high<level>(as_int(a), as_int(b)));
  }

  // Over all lanes.
  QCORE_NUMERIC std::int32_t largest(Int a) {
    __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
  }
  QCORE_NUMERIC float largest(Float a) {
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ps(b, _mm_movehdup_ps(b)));
  }
  QCORE_NUMERIC float smallest(Float a) {
    __m128 b = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_min_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_min_ps(b, _mm_movehdup_ps(b)));
  }

  QCORE_NUMERIC Float to_float(Int a) { return _mm256_cvtepi32_ps(a); }
  // Prepares the values of the 16 codes of 4 bits, which are consecutive integers here, for code_at().
  static constexpr bool kLooksUpNibbles = false;
  QCORE_NUMERIC Float nibbles(const float* numbers) { return set1(numbers[0]); }

  // The number that bits [shift, shift + Bits) of each lane stand for; bytes stand for themselves less 128.
  template <int Bits>
  QCORE_NUMERIC Float code_at(Int stored, int shift, Float lowest) {
    const Int code = bit_and(shift_right_32(stored, shift), set1((1 << Bits) - 1));
    return add(to_float(code), Bits == 4 ? lowest : set1(-128.0f));
  }
  QCORE_NUMERIC Int to_int(Float a) { return _mm256_cvtps_epi32(a); }  // half to even

  QCORE_NUMERIC Float load_half(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  QCORE_NUMERIC Float load_bfloat(const void* p) {
    const __m128i bits = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  QCORE_NUMERIC void store_half(void* p, Float a) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // numerics::float_to_bfloat() in each lane.
  QCORE_NUMERIC void store_bfloat(void* p, Float a) {
    const Int bits = as_int(a), high = shift_right_32(bits, 16);
    const Int rounded = shift_right_32(add(add(bits, set1(0x7fff)), bit_and(high, set1(1))), 16);
    const Int quiet = _mm256_or_si256(high, set1(0x40));
    const Int is_nan = as_int(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const Int result = _mm256_blendv_epi8(rounded, quiet, is_nan);
    const Int words = _mm256_permute4x64_epi64(_mm256_packus_epi32(result, result), 0xd8);
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(words));
  }
  QCORE_NUMERIC Int first_lanes(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  QCORE_NUMERIC Float load_first(const float* p, int count) { return _mm256_maskload_ps(p, first_lanes(count)); }
  QCORE_NUMERIC Int keep_first(Int a, int count) { return _mm256_and_si256(a, first_lanes(count)); }

  // Four vectors of int32, each lane in the range of int8, to one of bytes in the same order.
  QCORE_NUMERIC Int narrow_to_bytes(const Int (&parts)[4]) {
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(parts[0], parts[1]), _mm256_packs_epi32(parts[2], parts[3]));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  // Two vectors of int32 to one of 16-bit words, each four in the order 0 2 1 3: pairs for a multiply-add with the even
  // and with the odd bytes of a weight.
  QCORE_NUMERIC Int narrow_to_words(const Int (&parts)[2]) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(parts[0], parts[1]), 0xd8);
    return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
  }
};

}  // namespace
}  // namespace qcore
