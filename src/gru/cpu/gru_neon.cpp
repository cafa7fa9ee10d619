#include "gru/cpu/gru_tiles.h"
#include "gru/cpu/gru_vector_neon.h"

namespace qcore {
namespace {

// No instruction of the baseline multiplies unsigned bytes by signed ones, so even and odd ones are multiplied as
// 16-bit words.
struct DotWords {
  struct Weights {
    int16x8_t even, odd;
  };
  using Inputs = Weights;
  static constexpr int kMaxSums = 12;

  QCORE_NUMERIC Weights load(const std::int8_t* w) {
    const int16x8_t bytes = vreinterpretq_s16_s8(vld1q_s8(w));
    return {vshrq_n_s16(vshlq_n_s16(bytes, 8), 8), vshrq_n_s16(bytes, 8)};
  }
  QCORE_NUMERIC Inputs spread(const std::uint8_t* u) {
    std::int32_t four;
    memcpy(&four, u, 4);
    const uint16x8_t bytes = vreinterpretq_u16_s32(vdupq_n_s32(four));
    return {vreinterpretq_s16_u16(vandq_u16(bytes, vdupq_n_u16(0xff))), vreinterpretq_s16_u16(vshrq_n_u16(bytes, 8))};
  }
  QCORE_NUMERIC void multiply(int32x4_t& sum, const Inputs& u, const Weights& w) {
    int32x4_t low = vmull_s16(vget_low_s16(u.even), vget_low_s16(w.even)), high = vmull_high_s16(u.even, w.even);
    low = vmlal_s16(low, vget_low_s16(u.odd), vget_low_s16(w.odd));
    high = vmlal_high_s16(high, u.odd, w.odd);
    sum = vaddq_s32(sum, vpaddq_s32(low, high));
  }
};

using Tiles = GruTiles<GruNeon, DotWords>;

}  // namespace

extern const GruKernels kGruNeon = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step};

}  // namespace qcore
