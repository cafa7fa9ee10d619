#include "conv2d/cpu/depthwise.h"
#include "conv2d/cpu/tile_depthwise.h"
#include "simd/vector_generic128.h"

namespace qcore {
namespace {

struct Lanes : Generic128 {
  // Returns whether in every lane x is 0, or the bits of |x| are from low up to below high.
  QCORE_NUMERIC bool zero_or_within(Float x, std::uint32_t low, std::uint32_t high) {
    const Unsigned magnitude = (Unsigned)bit_and(as_int(x), set1(0x7fffffff));
    const Int outside = (Int)(magnitude - low >= (Unsigned)set1(static_cast<std::int32_t>(high - low)));
    return !any(outside & ((Int)magnitude != set1(0)));
  }
};

}  // namespace

extern const BlockKernels kDepthwiseGeneric128 = block_kernels<DepthwiseTiles<Lanes, false>, 5, 1, 5>(kRowsGeneric128);
extern const BlockKernels kDepthwiseFloatGeneric128 =
    block_kernels<DepthwiseTiles<Lanes, true>, 5, 1, 5>(kRowsGeneric128);

}  // namespace qcore
