#include <immintrin.h>

#include "gemm/cpu/tile_integer.h"
#include "simd/vector_avx512.h"

// Dot products of stored weight codes with int16 activations by AVX-512 VNNI; what the members mean: tile_integer.h.
namespace qcore {
namespace {

// Assembly for the same reasons as in gemm_avx512_int8.cpp.
struct DotWords {
  using Code = std::int16_t;
  static constexpr std::int64_t kMaxBlock = 256;
  struct Weights {
    __m512i even, odd;
  };
  struct Pair {
    std::int16_t codes[2];
  };
  QCORE_NUMERIC Weights split(__m512i codes) {
    return {_mm512_and_si512(codes, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(codes, 8)};
  }
  QCORE_NUMERIC void multiply(__m512i& acc, const Weights& w, const std::int16_t* a) {
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w.even), "m"(*reinterpret_cast<const Pair*>(a)));
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w.odd), "m"(*reinterpret_cast<const Pair*>(a + 2)));
  }
};

}  // namespace

extern const BlockKernels kInt16Avx512Vnni = block_kernels<IntegerTiles<Avx512, DotWords>, 6, 6, 12>(kRowsAvx512);

}  // namespace qcore
