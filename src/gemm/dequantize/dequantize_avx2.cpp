#include "gemm/dequantize/lanes.h"
#include "gemm/dequantize/stream_x86.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

struct Codes : Streaming<Avx2> {
  template <int kBits>
  QCORE_NUMERIC Float codes(const std::uint8_t* words, std::int64_t word_bytes, std::int64_t i) {
    std::int32_t first, second;
    memcpy(&first, words + i * kBits / 32 * word_bytes, sizeof first);
    if constexpr (kBits == 4) {
      const Int shifted = _mm256_srlv_epi32(set1(first), _mm256_setr_epi32(0, 8, 16, 24, 4, 12, 20, 28));
      return sub(to_float(bit_and(shifted, set1(15))), set1(8.0f));
    } else {
      memcpy(&second, words + (i / 4 + 1) * word_bytes, sizeof second);
      const __m128i both = _mm_insert_epi32(_mm_cvtsi32_si128(first), second, 1);
      return sub(to_float(_mm256_cvtepu8_epi32(both)), set1(128.0f));
    }
  }
};

}  // namespace

const DequantizeKernels kDequantizeAvx2 = kDequantizeLanes<Codes>;

}  // namespace qcore
