#include <immintrin.h>

#include "gemm/cpu/tile_integer.h"
#include "simd/vector_avx2.h"
#include "simd/vnni_encoding.h"

// Dot products of stored weight codes with activations' codes by AVX-VNNI; what the members mean: tile_integer.h.
namespace qcore {
namespace {

// Assembly, because g++ 12 surrounds the intrinsic with register copies when accumulators are an array.
struct DotBytes {
  using Code = std::int8_t;
  using Weights = __m256i;
  static constexpr std::int64_t kMaxBlock = 65536;
  QCORE_NUMERIC Weights split(__m256i codes) { return codes; }
  QCORE_NUMERIC void multiply(__m256i& acc, __m256i w, const std::int8_t* a) {
    std::int32_t four;
    memcpy(&four, a, 4);
    asm(QCORE_VNNI_ENCODING "vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(_mm256_set1_epi32(four)));
  }
};

struct DotWords {
  using Code = std::int16_t;
  static constexpr std::int64_t kMaxBlock = 256;
  struct Weights {
    __m256i even, odd;
  };
  QCORE_NUMERIC Weights split(__m256i codes) {
    return {_mm256_and_si256(codes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(codes, 8)};
  }
  QCORE_NUMERIC void multiply(__m256i& acc, const Weights& w, const std::int16_t* a) {
    std::int32_t pairs[2];
    memcpy(pairs, a, 8);
    asm(QCORE_VNNI_ENCODING "vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(w.even), "x"(_mm256_set1_epi32(pairs[0])));
    asm(QCORE_VNNI_ENCODING "vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(w.odd), "x"(_mm256_set1_epi32(pairs[1])));
  }
};

}  // namespace

extern const BlockKernels kInt8AvxVnni =
    block_kernels<IntegerTiles<Avx2, DotBytes, 8, 4, EncodedTile<Avx2, DotBytes, 2, 1>>, 5, 1, 5>(kRowsAvx2);
extern const BlockKernels kInt16AvxVnni = block_kernels<IntegerTiles<Avx2, DotWords>, 5, 1, 5>(kRowsAvx2);

}  // namespace qcore
