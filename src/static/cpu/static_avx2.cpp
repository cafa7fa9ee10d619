#include "static/cpu/codes_avx2.h"
#include "static/cpu/depthwise_tile.h"
#include "static/cpu/tile.h"
#include "static/cpu/transpose.h"

namespace qcore {
namespace {

// vpmaddubsw saturates for full-range 8-bit codes, so both operands are widened to 16 bits.
struct Dot {
  struct Words {
    __m256i even, odd;
  };
  using Weights = Words;
  using Codes = Words;
  QCORE_NUMERIC Weights split(__m256i weights) {
    return {_mm256_srai_epi16(_mm256_slli_epi16(weights, 8), 8), _mm256_srai_epi16(weights, 8)};
  }
  QCORE_NUMERIC Codes operand(__m256i codes) {
    return {_mm256_and_si256(codes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(codes, 8)};
  }
  QCORE_NUMERIC void multiply(__m256i& acc, const Weights& w, const Codes& x) {
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(w.even, x.even));
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(w.odd, x.odd));
  }
};

}  // namespace

extern const StaticTileKernels kStaticAvx2 = {1, CodesAvx2::kBytes, ProductTiles<CodesAvx2, Dot, 1>::run,
                                              DepthwiseTile<CodesAvx2, Dot, 1>::run, transpose_bytes};

}  // namespace qcore
