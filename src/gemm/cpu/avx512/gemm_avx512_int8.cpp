#include <immintrin.h>

#include "gemm/cpu/tile_integer.h"
#include "simd/vector_avx512.h"

// Dot products of stored weight codes with int8 activations by AVX-512 VNNI; what the members mean: tile_integer.h.
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

}  // namespace

extern const BlockKernels kInt8Avx512Vnni =
    block_kernels<IntegerTiles<Avx512, DotBytes, 8, 4, EncodedTile<Avx512, DotBytes, 4, 2>>, 6, 6, 12>(kRowsAvx512);

}  // namespace qcore
