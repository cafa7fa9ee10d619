#include <immintrin.h>

#include "gemm/cpu/tile_float.h"
#include "gemm/cpu/tile_integer.h"
#include "simd/vector_avx2.h"

// Dot products of stored weight codes with activations' codes by AVX2; what the members mean: tile_integer.h.
namespace qcore {
namespace {

// vpmaddubsw saturates for full-range 8-bit codes, so both operands are widened to 16 bits: weights in registers, once
// for all rows, activations when they are packed. The same kernel multiplies 16-bit activations.
template <int MaxBlock>
struct DotWords {
  using Code = std::int16_t;
  static constexpr std::int64_t kMaxBlock = MaxBlock;
  struct Weights {
    __m256i even, odd;
  };
  QCORE_NUMERIC Weights split(__m256i codes) {
    return {_mm256_and_si256(codes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(codes, 8)};
  }
  QCORE_NUMERIC void multiply(__m256i& acc, const Weights& w, const std::int16_t* a) {
    std::int32_t pairs[2];
    memcpy(pairs, a, 8);
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(w.even, _mm256_set1_epi32(pairs[0])));
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(w.odd, _mm256_set1_epi32(pairs[1])));
  }
};

// 4-bit codes are stored as 0 to 15: two of their products with 8-bit activations fit in 16 bits.
struct DotNibbles {
  using Code = std::int8_t;
  using Weights = __m256i;
  static constexpr std::int64_t kMaxBlock = 65536;
  QCORE_NUMERIC Weights split(__m256i codes) { return codes; }
  QCORE_NUMERIC void multiply(__m256i& acc, __m256i w, const std::int8_t* a) {
    std::int32_t four;
    memcpy(&four, a, 4);
    const __m256i pairs = _mm256_maddubs_epi16(w, _mm256_set1_epi32(four));
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

}  // namespace

extern const RowFunctions kRowsAvx2 = row_functions<Avx2>();

extern const BlockKernels kInt8Avx2 =
    block_kernels<IntegerTiles<Avx2, DotWords<65536>, 8, 8, EncodedTile<Avx2, DotWords<65536>, 2, 1>>, 4, 1, 4>(
        kRowsAvx2);
extern const BlockKernels kInt8W4Avx2 = block_kernels<IntegerTiles<Avx2, DotNibbles, 4, 4>, 4, 1, 4>(kRowsAvx2);
extern const BlockKernels kInt16Avx2 = block_kernels<IntegerTiles<Avx2, DotWords<256>>, 4, 1, 4>(kRowsAvx2);
extern const BlockKernels kFloatAvx2 = block_kernels<FloatTiles<Avx2>, 4, 1, 4>(kRowsAvx2);

}  // namespace qcore
