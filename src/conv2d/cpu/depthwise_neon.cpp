#include <arm_neon.h>

#include "conv2d/cpu/depthwise.h"
#include "conv2d/cpu/tile_depthwise.h"
#include "simd/vector_neon.h"

namespace qcore {
namespace {

struct Lanes : Neon {
  // Keeps the compiler from loading x anew for each of its uses, of which the processor can do fewer than of fmas.
  QCORE_NUMERIC Float in_register(Float x) {
    asm("" : "+w"(x));
    return x;
  }
  QCORE_NUMERIC Int min_unsigned(Int a, Int b) {
    return vreinterpretq_s32_u32(vminq_u32(vreinterpretq_u32_s32(a), vreinterpretq_u32_s32(b)));
  }
  // Returns whether all numbers of which these are the extremes, less 1, are from low up to below high.
  QCORE_NUMERIC bool within(Int smallest, Int largest, std::uint32_t low, std::uint32_t high) {
    return vminvq_u32(vreinterpretq_u32_s32(smallest)) >= low - 1 &&
           vmaxvq_s32(largest) < static_cast<std::int32_t>(high - 1);
  }
  static constexpr bool kStoresPairs = false;
};

}  // namespace

extern const BlockKernels kDepthwiseNeon = block_kernels<DepthwiseTiles<Lanes, false>, 5, 1, 5>(kRowsNeon);
extern const BlockKernels kDepthwiseFloatNeon = block_kernels<DepthwiseTiles<Lanes, true>, 5, 1, 5>(kRowsNeon);

}  // namespace qcore
