#include <immintrin.h>

#include "gemm/cpu/tile_float.h"
#include "gemm/cpu/tile_integer.h"
#include "simd/vector_avx512.h"

// Dot products of stored weight codes with activations' codes by AVX-512 VNNI; what the members mean: tile_integer.h.
namespace qcore {
namespace {

// Assembly, because g++ 12 surrounds the intrinsic with register copies when accumulators are an array, and because the
// activations' operand can be broadcast from memory by the instruction itself.
struct DotBytes {
  using Code = std::int8_t;
  using Weights = __m512i;
  static constexpr std::int64_t kMaxBlock = 65536;
  struct Four {
    std::int8_t codes[4];
  };
  QCORE_NUMERIC Weights split(__m512i codes) { return codes; }
  QCORE_NUMERIC void multiply(__m512i& acc, __m512i w, const std::int8_t* a) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const Four*>(a)));
  }
};

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

extern const BlockKernels kInt8Avx512Vnni =
    block_kernels<IntegerTiles<Avx512, DotBytes, 8, 4, EncodedTile<Avx512, DotBytes, 4, 2>>, 6, 6, 12>();
extern const BlockKernels kInt16Avx512Vnni = block_kernels<IntegerTiles<Avx512, DotWords>, 6, 6, 12>();
extern const BlockKernels kFloatAvx512 = block_kernels<FloatTiles<Avx512>, 6, 6, 12>();

}  // namespace qcore
