#include <immintrin.h>

#include "conv2d/cpu/depthwise.h"
#include "conv2d/cpu/tile_depthwise.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

struct Lanes : Avx2 {
  // Keeps the compiler from loading x anew for each of its uses, of which the processor can do fewer than of fmas.
  QCORE_NUMERIC Float in_register(Float x) {
    asm("" : "+x"(x));
    return x;
  }
  QCORE_NUMERIC Int min_unsigned(Int a, Int b) { return _mm256_min_epu32(a, b); }
  // Returns whether all numbers of which these are the extremes, less 1, are from low up to below high.
  QCORE_NUMERIC bool within(Int smallest, Int largest, std::uint32_t low, std::uint32_t high) {
    const Int allowed = _mm256_max_epu32(smallest, set1(static_cast<std::int32_t>(low - 1)));
    const Int above = _mm256_cmpgt_epi32(largest, set1(static_cast<std::int32_t>(high - 2)));
    const Int good = _mm256_andnot_si256(above, _mm256_cmpeq_epi32(allowed, smallest));
    return _mm256_movemask_ps(_mm256_castsi256_ps(good)) == 0xff;
  }
  static constexpr bool kStoresPairs = false;
};

}  // namespace

extern const BlockKernels kDepthwiseAvx2 = block_kernels<DepthwiseTiles<Lanes, false>, 4, 1, 4>(kRowsAvx2);
extern const BlockKernels kDepthwiseFloatAvx2 = block_kernels<DepthwiseTiles<Lanes, true>, 4, 1, 4>(kRowsAvx2);

}  // namespace qcore
