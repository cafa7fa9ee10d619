#include <immintrin.h>

#include "conv2d/cpu/depthwise.h"
#include "conv2d/cpu/tile_depthwise.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

struct Lanes : Avx2 {
  // Returns whether in every lane x is 0, or the bits of |x| are from low up to below high.
  QCORE_NUMERIC bool zero_or_within(Float x, std::uint32_t low, std::uint32_t high) {
    const Int magnitude = bit_and(as_int(x), set1(0x7fffffff));
    const Int too_small = _mm256_cmpgt_epi32(set1(static_cast<std::int32_t>(low)), magnitude);
    const Int below = _mm256_cmpgt_epi32(set1(static_cast<std::int32_t>(high)), magnitude);
    const Int zero = _mm256_cmpeq_epi32(magnitude, set1(0));
    const Int good = _mm256_or_si256(_mm256_andnot_si256(too_small, below), zero);
    return _mm256_movemask_ps(_mm256_castsi256_ps(good)) == 0xff;
  }
};

}  // namespace

extern const BlockKernels kDepthwiseAvx2 = block_kernels<DepthwiseTiles<Lanes, false>, 4, 1, 4>(kRowsAvx2);
extern const BlockKernels kDepthwiseFloatAvx2 = block_kernels<DepthwiseTiles<Lanes, true>, 4, 1, 4>(kRowsAvx2);

}  // namespace qcore
