#include "conv2d/cpu/depthwise.h"
#include "conv2d/cpu/tile_depthwise.h"
#include "simd/vector_generic128.h"

namespace qcore {
namespace {

struct Lanes : Generic128 {
  QCORE_NUMERIC Float in_register(Float x) { return x; }
  QCORE_NUMERIC Int min_unsigned(Int a, Int b) { return select((Int)((Unsigned)a < (Unsigned)b), a, b); }
  // Returns whether all numbers of which these are the extremes, less 1, are from low up to below high.
  QCORE_NUMERIC bool within(Int smallest, Int largest, std::uint32_t low, std::uint32_t high) {
    const Int below = (Int)((Unsigned)smallest < (Unsigned)set1(static_cast<std::int32_t>(low - 1)));
    return !any(below | (Int)(largest >= set1(static_cast<std::int32_t>(high - 1))));
  }
  static constexpr bool kStoresPairs = false;
};

}  // namespace

extern const BlockKernels kDepthwiseGeneric128 = block_kernels<DepthwiseTiles<Lanes, false>, 5, 1, 5>(kRowsGeneric128);
extern const BlockKernels kDepthwiseFloatGeneric128 =
    block_kernels<DepthwiseTiles<Lanes, true>, 5, 1, 5>(kRowsGeneric128);

}  // namespace qcore
