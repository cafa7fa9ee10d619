#include "simd/vnni_encoding.h"
#include "static/cpu/codes_avx2.h"
#include "static/cpu/depthwise_tile.h"
#include "static/cpu/tile.h"
#include "static/cpu/transpose.h"

namespace qcore {
namespace {

// Assembly, because g++ 12 surrounds the intrinsic with register copies when accumulators are an array.
struct Dot {
  using Weights = __m256i;
  using Codes = __m256i;
  QCORE_NUMERIC Weights split(__m256i weights) { return weights; }
  QCORE_NUMERIC Codes operand(__m256i codes) { return codes; }
  QCORE_NUMERIC void multiply(__m256i& acc, __m256i w, __m256i x) {
    asm(QCORE_VNNI_ENCODING "vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(x), "x"(w));
  }
};

}  // namespace

extern const StaticTileKernels kStaticAvxVnni = {1, CodesAvx2::kBytes, ProductTiles<CodesAvx2, Dot, 1>::run,
                                                 DepthwiseTile<CodesAvx2, Dot, 2>::run, transpose_bytes};

}  // namespace qcore
