#include "static/cpu/codes_neon.h"
#include "static/cpu/depthwise_tile.h"
#include "static/cpu/tile.h"

namespace qcore {
namespace {

// Two products of -128 by -128 leave 16 bits, so that sums of two are widened.
struct Dot {
  using Weights = int8x16_t;
  using Codes = int8x16_t;
  QCORE_NUMERIC Weights split(int32x4_t weights) { return vreinterpretq_s8_s32(weights); }
  QCORE_NUMERIC Codes operand(int32x4_t codes) { return vreinterpretq_s8_s32(codes); }
  QCORE_NUMERIC void multiply(int32x4_t& acc, Weights w, Codes x) {
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
    acc = vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
  }
};

}  // namespace

extern const StaticTileKernels kStaticNeon = {1,
                                              CodesNeon::kBytes,
                                              ProductTiles<CodesNeon, Dot, 1>::run,
                                              DepthwiseTile<CodesNeon, Dot, 2>::run,
                                              transpose_bytes,
                                              true};

}  // namespace qcore
