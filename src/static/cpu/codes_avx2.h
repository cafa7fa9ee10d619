#pragma once

#include "simd/vector_avx2.h"
#include "static/cpu/vtable.h"

// Vectors of bytes in 256 bits.
namespace qcore {
namespace {

struct CodesAvx2 : Avx2 {
  static constexpr int kBytes = 32;
  static constexpr int kStored = 2;

  QCORE_NUMERIC Int flip(Int a, Int b) { return _mm256_xor_si256(a, b); }
  QCORE_NUMERIC Int load_first_bytes(const std::uint8_t* p, int count) {
    if (count == kBytes) return load(p);
    alignas(kBytes) std::uint8_t bytes[kBytes] = {};
    memcpy(bytes, p, static_cast<std::size_t>(count));
    return load(bytes);
  }

  QCORE_NUMERIC void interleave(const Int (&rows)[4], Int (&out)[4]) {
    const Int low01 = _mm256_unpacklo_epi8(rows[0], rows[1]), high01 = _mm256_unpackhi_epi8(rows[0], rows[1]);
    const Int low23 = _mm256_unpacklo_epi8(rows[2], rows[3]), high23 = _mm256_unpackhi_epi8(rows[2], rows[3]);
    out[0] = _mm256_unpacklo_epi16(low01, low23);
    out[1] = _mm256_unpackhi_epi16(low01, low23);
    out[2] = _mm256_unpacklo_epi16(high01, high23);
    out[3] = _mm256_unpackhi_epi16(high01, high23);
  }

  QCORE_NUMERIC Int finish(Int low, Int high, const StaticCodeFormat& format) {
    const Int zero = _mm256_set1_epi16(static_cast<short>(format.zero_point));
    Int codes = _mm256_packus_epi16(_mm256_adds_epi16(low, zero), _mm256_adds_epi16(high, zero));
    codes = _mm256_max_epu8(codes, _mm256_set1_epi8(static_cast<char>(format.lo)));
    codes = _mm256_min_epu8(codes, _mm256_set1_epi8(static_cast<char>(format.hi)));
    return flip(codes, _mm256_set1_epi8(static_cast<char>(format.sign_xor_mask)));
  }
  QCORE_NUMERIC Int narrow(const Int (&sums)[4], const StaticCodeFormat& format) {
    return finish(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]), format);
  }
  // Narrows two vectors: codes 0 to 3 of both, then in the upper half the others.
  QCORE_NUMERIC Int narrow(const Int (&sums)[2], const StaticCodeFormat& format) {
    const Int words = _mm256_packs_epi32(sums[0], sums[1]);
    return finish(words, words, format);
  }
  QCORE_NUMERIC Int in_order(Int codes) {
    return _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
  }
  QCORE_NUMERIC void store_first_bytes(std::uint8_t* p, Int codes, int count) {
    if (count == kBytes) return store(p, codes);
    if (count == 16) return _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(codes));
    alignas(kBytes) std::uint8_t bytes[kBytes];
    store(bytes, codes);
    memcpy(p, bytes, static_cast<std::size_t>(count));
  }
};

}  // namespace
}  // namespace qcore
