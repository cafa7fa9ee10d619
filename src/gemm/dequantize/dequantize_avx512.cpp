#include "gemm/dequantize/lanes.h"
#include "gemm/dequantize/stream_x86.h"
#include "simd/vector_avx512.h"

namespace qcore {
namespace {

struct Codes : Streaming<Avx512> {
  template <int kBits>
  QCORE_NUMERIC Float codes(const std::uint8_t* words, std::int64_t word_bytes, std::int64_t i) {
    constexpr int kWords = kLanes * kBits / 32;
    std::int32_t word[kWords];
    for (int n = 0; n < kWords; ++n) memcpy(word + n, words + (i * kBits / 32 + n) * word_bytes, sizeof word[n]);
    if constexpr (kBits == 4) {
      // The permutation takes an index from the lowest four bits of a lane, whatever is above them.
      const Int both = _mm512_mask_set1_epi32(set1(word[0]), 0xff00, word[1]);
      const Int places = _mm512_setr_epi32(0, 8, 16, 24, 4, 12, 20, 28, 0, 8, 16, 24, 4, 12, 20, 28);
      return _mm512_permutexvar_ps(_mm512_srlv_epi32(both, places),
                                   _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7));
    } else {
      const __m128i bytes = _mm_setr_epi32(word[0], word[1], word[2], word[3]);
      return sub(to_float(_mm512_cvtepu8_epi32(bytes)), set1(128.0f));
    }
  }
};

}  // namespace

const DequantizeKernels kDequantizeAvx512 = kDequantizeLanes<Codes>;

}  // namespace qcore
