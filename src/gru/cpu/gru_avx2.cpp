#include "gru/cpu/gru_tiles.h"
#include "gru/cpu/gru_vector_avx2.h"

namespace qcore {
namespace {

// vpmaddubsw saturates for full-range bytes, so even and odd ones are multiplied as 16-bit words.
struct DotWords {
  struct Weights {
    __m256i even, odd;
  };
  using Inputs = Weights;
  static constexpr int kMaxSums = 9;

  QCORE_NUMERIC Weights load(const std::int8_t* w) {
    const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(w));
    return {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)};
  }
  QCORE_NUMERIC Inputs spread(const std::uint8_t* u) {
    std::int32_t four;
    memcpy(&four, u, 4);
    const __m256i bytes = _mm256_set1_epi32(four);
    return {_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(bytes, 8)};
  }
  QCORE_NUMERIC void multiply(__m256i& sum, const Inputs& u, const Weights& w) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(u.even, w.even));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(u.odd, w.odd));
  }
};

using Tiles = GruTiles<GruAvx2, DotWords>;

}  // namespace

extern const GruKernels kGruAvx2 = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step};

}  // namespace qcore
