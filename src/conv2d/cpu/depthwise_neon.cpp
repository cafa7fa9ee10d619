#include <arm_neon.h>

#include "conv2d/cpu/depthwise.h"
#include "conv2d/cpu/tile_depthwise.h"
#include "simd/vector_neon.h"

namespace qcore {
namespace {

struct Lanes : Neon {
  // Returns whether in every lane x is 0, or the bits of |x| are from low up to below high.
  QCORE_NUMERIC bool zero_or_within(Float x, std::uint32_t low, std::uint32_t high) {
    const uint32x4_t magnitude = vreinterpretq_u32_s32(bit_and(as_int(x), set1(0x7fffffff)));
    const uint32x4_t within = vcltq_u32(vsubq_u32(magnitude, vdupq_n_u32(low)), vdupq_n_u32(high - low));
    return vminvq_u32(vorrq_u32(within, vceqzq_u32(magnitude))) != 0;
  }
};

}  // namespace

extern const BlockKernels kDepthwiseNeon = block_kernels<DepthwiseTiles<Lanes, false>, 5, 1, 5>(kRowsNeon);
extern const BlockKernels kDepthwiseFloatNeon = block_kernels<DepthwiseTiles<Lanes, true>, 5, 1, 5>(kRowsNeon);

}  // namespace qcore
