#include "static/cpu/codes_avx512.h"
#include "static/cpu/depthwise_tile.h"
#include "static/cpu/tile.h"
#include "static/cpu/transpose.h"

namespace qcore {
namespace {

// Assembly, because g++ 12 surrounds the intrinsic with register copies when accumulators are an array.
struct Dot {
  using Weights = __m512i;
  using Codes = __m512i;
  QCORE_NUMERIC Weights split(__m512i weights) { return weights; }
  QCORE_NUMERIC Codes operand(__m512i codes) { return codes; }
  QCORE_NUMERIC void multiply(__m512i& acc, __m512i w, __m512i x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w));
  }
};

}  // namespace

extern const StaticTileKernels kStaticAvx512Vnni = {4, CodesAvx512::kBytes, ProductTiles<CodesAvx512, Dot, 4>::run,
                                                    DepthwiseTile<CodesAvx512, Dot, 4>::run, transpose_bytes};

}  // namespace qcore
