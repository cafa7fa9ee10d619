#include "static/cpu/codes_neon.h"
#include "static/cpu/depthwise_tile.h"
#include "static/cpu/tile.h"

namespace qcore {
namespace {

// Assembly, because g++ 12 surrounds the intrinsic with register copies when accumulators are an array.
struct Dot {
  using Weights = int32x4_t;
  using Codes = int32x4_t;
  QCORE_NUMERIC Weights split(int32x4_t weights) { return weights; }
  QCORE_NUMERIC Codes operand(int32x4_t codes) { return codes; }
  QCORE_NUMERIC void multiply(int32x4_t& acc, Weights w, Codes x) {
    asm("sdot %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(w), "w"(x));
  }
};

}  // namespace

extern const StaticTileKernels kStaticNeonDotprod = {1,
                                                     CodesNeon::kBytes,
                                                     ProductTiles<CodesNeon, Dot, 1>::run,
                                                     DepthwiseTile<CodesNeon, Dot, 4>::run,
                                                     transpose_bytes,
                                                     true};

}  // namespace qcore
