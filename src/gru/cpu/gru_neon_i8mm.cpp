#include "gru/cpu/gru_tiles.h"
#include "gru/cpu/gru_vector_neon.h"

namespace qcore {
namespace {

// Assembly, because g++ 12 surrounds the intrinsic with register copies when accumulators are an array.
struct DotBytes {
  using Weights = int32x4_t;
  using Inputs = int32x4_t;
  static constexpr int kMaxSums = 24;

  QCORE_NUMERIC Weights load(const std::int8_t* w) { return GruNeon::load(w); }
  QCORE_NUMERIC Inputs spread(const std::uint8_t* u) {
    std::int32_t four;
    memcpy(&four, u, 4);
    return vdupq_n_s32(four);
  }
  QCORE_NUMERIC void multiply(int32x4_t& sum, Inputs u, Weights w) {
    asm("usdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(u), "w"(w));
  }
};

using Tiles = GruTiles<GruNeon, DotBytes>;

}  // namespace

extern const GruKernels kGruNeonI8mm = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step};

}  // namespace qcore
