#pragma once

#include "simd/vector_avx512.h"
#include "static/cpu/vtable.h"

// Vectors of bytes in 512 bits.
namespace qcore {
namespace {

struct CodesAvx512 : Avx512 {
  static constexpr int kBytes = 64;
  static constexpr int kStored = 4;  // vectors of sums that become one of codes

  QCORE_NUMERIC Int flip(Int a, Int b) { return _mm512_xor_si512(a, b); }
  QCORE_NUMERIC __mmask64 first_bytes(int count) { return ~std::uint64_t{0} >> (64 - count); }
  QCORE_NUMERIC Int load_first_bytes(const std::uint8_t* p, int count) {
    return _mm512_maskz_loadu_epi8(first_bytes(count), p);
  }

  // Four rows of bytes to dwords of four; narrow() undoes the order in which this leaves them.
  QCORE_NUMERIC void interleave(const Int (&rows)[4], Int (&out)[4]) {
    const Int low01 = _mm512_unpacklo_epi8(rows[0], rows[1]), high01 = _mm512_unpackhi_epi8(rows[0], rows[1]);
    const Int low23 = _mm512_unpacklo_epi8(rows[2], rows[3]), high23 = _mm512_unpackhi_epi8(rows[2], rows[3]);
    out[0] = _mm512_unpacklo_epi16(low01, low23);
    out[1] = _mm512_unpackhi_epi16(low01, low23);
    out[2] = _mm512_unpacklo_epi16(high01, high23);
    out[3] = _mm512_unpackhi_epi16(high01, high23);
  }

  // Saturating all the way, as sums beyond int32 have done downwards already.
  QCORE_NUMERIC Int narrow(const Int (&sums)[4], const StaticCodeFormat& format) {
    const Int zero = _mm512_set1_epi16(static_cast<short>(format.zero_point));
    const Int low = _mm512_adds_epi16(_mm512_packs_epi32(sums[0], sums[1]), zero);
    const Int high = _mm512_adds_epi16(_mm512_packs_epi32(sums[2], sums[3]), zero);
    Int codes = _mm512_packus_epi16(low, high);
    codes = _mm512_max_epu8(codes, _mm512_set1_epi8(static_cast<char>(format.lo)));
    codes = _mm512_min_epu8(codes, _mm512_set1_epi8(static_cast<char>(format.hi)));
    return flip(codes, _mm512_set1_epi8(static_cast<char>(format.sign_xor_mask)));
  }
  QCORE_NUMERIC Int in_order(Int codes) {
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), codes);
  }
  QCORE_NUMERIC void store_first_bytes(std::uint8_t* p, Int codes, int count) {
    _mm512_mask_storeu_epi8(p, first_bytes(count), codes);
  }
};

}  // namespace
}  // namespace qcore
