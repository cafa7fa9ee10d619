#include <immintrin.h>

#include "conv2d/cpu/depthwise.h"
#include "conv2d/cpu/tile_depthwise.h"
#include "simd/vector_avx512.h"

namespace qcore {
namespace {

struct Lanes : Avx512 {
  // Keeps the compiler from loading x anew for each of its uses, of which the processor can do fewer than of fmas.
  QCORE_NUMERIC Float in_register(Float x) {
    asm("" : "+v"(x));
    return x;
  }
  QCORE_NUMERIC Int min_unsigned(Int a, Int b) { return _mm512_min_epu32(a, b); }
  // Returns whether all numbers of which these are the extremes, less 1, are from low up to below high.
  QCORE_NUMERIC bool within(Int smallest, Int largest, std::uint32_t low, std::uint32_t high) {
    const __mmask16 below = _mm512_cmplt_epu32_mask(smallest, set1(static_cast<std::int32_t>(low - 1)));
    return !(below | _mm512_cmpge_epi32_mask(largest, set1(static_cast<std::int32_t>(high - 1))));
  }

  // Two vectors of store_bfloat() side by side.
  static constexpr bool kStoresPairs = true;
  QCORE_NUMERIC void store_bfloats(std::uint16_t* p, Float a, Float b) {
    if (__builtin_expect(_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q), 0)) {
      store_bfloat(p, a);
      store_bfloat(p + kLanes, b);
      return;
    }
    alignas(64) static constexpr std::uint16_t kOddWords[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                                23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                                45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    store(p, _mm512_permutex2var_epi16(rounded(a), load(kOddWords), rounded(b)));
  }

 private:
  // Rounds to the upper 16 bits, half to even.
  QCORE_NUMERIC Int rounded(Float a) {
    const Int bits = as_int(a);
    return add(add(bits, set1(0x7fff)), bit_and(shift_right_32(bits, 16), set1(1)));
  }
};

}  // namespace

extern const BlockKernels kDepthwiseAvx512 = block_kernels<DepthwiseTiles<Lanes, false>, 8, 2, 16>(kRowsAvx512);
extern const BlockKernels kDepthwiseFloatAvx512 = block_kernels<DepthwiseTiles<Lanes, true>, 8, 2, 16>(kRowsAvx512);

}  // namespace qcore
