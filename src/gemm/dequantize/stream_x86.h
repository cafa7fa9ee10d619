#pragma once

#include <immintrin.h>

#include <cstddef>

#include "numerics/portable.h"

// Adds stores past the caches to the vectors of an instruction set of x86-64.
namespace qcore {
namespace {

template <class Vector>
struct Streaming : Vector {
  static constexpr bool kStreams = true;

  // `to` is aligned to 16 bytes, if `whole` to kBytes; `from` always is.
  template <std::size_t kBytes>
  QCORE_NUMERIC void stream(void* to, const void* from, bool whole) {
    if constexpr (kBytes == 64)
      if (whole) return _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_load_si512(from));
    if (kBytes == 32 && whole)
      return _mm256_stream_si256(static_cast<__m256i*>(to), _mm256_load_si256(static_cast<const __m256i*>(from)));
    auto* pieces = static_cast<__m128i*>(to);
    for (std::size_t i = 0; i < kBytes / sizeof *pieces; ++i)
      _mm_stream_si128(pieces + i, _mm_load_si128(static_cast<const __m128i*>(from) + i));
  }
  static void fence() { _mm_sfence(); }
};

}  // namespace
}  // namespace qcore
