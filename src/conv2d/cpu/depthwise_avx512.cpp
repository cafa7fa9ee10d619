#include <immintrin.h>

#include "conv2d/cpu/depthwise.h"
#include "conv2d/cpu/tile_depthwise.h"
#include "simd/vector_avx512.h"

namespace qcore {
namespace {

struct Lanes : Avx512 {
  // Returns whether in every lane x is 0, or the bits of |x| are from low up to below high.
  QCORE_NUMERIC bool zero_or_within(Float x, std::uint32_t low, std::uint32_t high) {
    const Int magnitude = bit_and(as_int(x), set1(0x7fffffff));
    const Int above = _mm512_sub_epi32(magnitude, set1(static_cast<std::int32_t>(low)));
    const __mmask16 within = _mm512_cmplt_epu32_mask(above, set1(static_cast<std::int32_t>(high - low)));
    return (within | _mm512_testn_epi32_mask(magnitude, magnitude)) == 0xffff;
  }
};

}  // namespace

extern const BlockKernels kDepthwiseAvx512 = block_kernels<DepthwiseTiles<Lanes, false>, 6, 2, 12>(kRowsAvx512);
extern const BlockKernels kDepthwiseFloatAvx512 = block_kernels<DepthwiseTiles<Lanes, true>, 6, 2, 12>(kRowsAvx512);

}  // namespace qcore
