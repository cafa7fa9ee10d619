#include <arm_neon.h>

#include "gemm/cpu/tile_float.h"
#include "gemm/cpu/tile_integer.h"
#include "simd/vector_neon.h"

// Dot products of stored weight codes with activations' codes by the NEON of every AArch64 processor; what the members
// mean: tile_integer.h.
namespace qcore {
namespace {

// Returns the products of 16 codes with four, once more for each four of them.
struct Products {
  int16x8_t low, high;
};
QCORE_NUMERIC Products products(int8x16_t w, const std::int8_t* a) {
  std::int32_t four;
  memcpy(&four, a, 4);
  const int8x16_t codes = vreinterpretq_s8_s32(vdupq_n_s32(four));
  return {vmull_s8(vget_low_s8(w), vget_low_s8(codes)), vmull_high_s8(w, codes)};
}

// Two products of -128 by -128 leave 16 bits, so that sums of two are widened.
struct DotBytes {
  using Code = std::int8_t;
  using Weights = int8x16_t;
  static constexpr std::int64_t kMaxBlock = 65536;
  QCORE_NUMERIC Weights split(int32x4_t codes) {
    return vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_s32(codes), vdupq_n_u8(0x80)));
  }
  QCORE_NUMERIC void multiply(int32x4_t& acc, Weights w, const std::int8_t* a) {
    const Products p = products(w, a);
    acc = vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(p.low), vpaddlq_s16(p.high)));
  }
};

// Codes below 64: two of their products with 8-bit activations fit in 16 bits.
struct DotSmallBytes {
  using Code = std::int8_t;
  using Weights = int8x16_t;
  static constexpr std::int64_t kMaxBlock = 65536;
  QCORE_NUMERIC Weights split(int32x4_t codes) { return vreinterpretq_s8_s32(codes); }
  QCORE_NUMERIC void multiply(int32x4_t& acc, Weights w, const std::int8_t* a) {
    const Products p = products(w, a);
    acc = vpadalq_s16(acc, vpaddq_s16(p.low, p.high));
  }
};

struct DotWords {
  using Code = std::int16_t;
  static constexpr std::int64_t kMaxBlock = 256;
  struct Weights {
    int16x8_t even, odd;
  };
  QCORE_NUMERIC Weights split(int32x4_t codes) {
    return {vreinterpretq_s16_s32(vandq_s32(codes, vdupq_n_s32(0x00ff00ff))),
            vreinterpretq_s16_u16(vshrq_n_u16(vreinterpretq_u16_s32(codes), 8))};
  }
  // `a` has the codes 0 2 1 3 of four, pairs for the even and for the odd bytes of a weight.
  QCORE_NUMERIC void multiply(int32x4_t& acc, const Weights& w, const std::int16_t* a) {
    std::int32_t pairs[2];
    memcpy(pairs, a, 8);
    const int16x8_t even = vreinterpretq_s16_s32(vdupq_n_s32(pairs[0]));
    const int16x8_t odd = vreinterpretq_s16_s32(vdupq_n_s32(pairs[1]));
    int32x4_t low = vmull_s16(vget_low_s16(w.even), vget_low_s16(even));
    int32x4_t high = vmull_high_s16(w.even, even);
    low = vmlal_s16(low, vget_low_s16(w.odd), vget_low_s16(odd));
    high = vmlal_high_s16(high, w.odd, odd);
    acc = vaddq_s32(acc, vpaddq_s32(low, high));
  }
};

}  // namespace

extern const RowFunctions kRowsNeon = row_functions<Neon>();

extern const BlockKernels kInt8Neon =
    block_kernels<SignedIntegerTiles<Neon, DotBytes, DotSmallBytes, 2>, 4, 1, 4>(kRowsNeon);
extern const BlockKernels kInt16Neon = block_kernels<IntegerTiles<Neon, DotWords>, 4, 1, 4>(kRowsNeon);
extern const BlockKernels kFloatNeon = block_kernels<FloatTiles<Neon>, 4, 1, 4>(kRowsNeon);

}  // namespace qcore
