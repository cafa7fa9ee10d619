#pragma once

#include <immintrin.h>

#include "simd/vector_avx512.h"

namespace qcore {
namespace {

// What conv2d needs beside the tiles' operations.
struct ConvAvx512 : Avx512 {
  // Whether in every lane x is 0, or the bits of |x| are from low up to below high.
  QCORE_NUMERIC bool zero_or_within(Float x, std::uint32_t low, std::uint32_t high) {
    const Int magnitude = bit_and(as_int(x), set1(0x7fffffff));
    const Int above = _mm512_sub_epi32(magnitude, set1(static_cast<std::int32_t>(low)));
    const __mmask16 within = _mm512_cmplt_epu32_mask(above, set1(static_cast<std::int32_t>(high - low)));
    return (within | _mm512_testn_epi32_mask(magnitude, magnitude)) == 0xffff;
  }
};

}  // namespace
}  // namespace qcore
