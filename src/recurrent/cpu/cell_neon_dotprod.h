#pragma once

#include "recurrent/cpu/cell_neon.h"

namespace qcore {
namespace {

// Signed bytes of both: inputs less 128. Assembly, because g++ 12 surrounds the intrinsic with register copies when
// accumulators are an array.
struct DotBytes {
  using Weights = int32x4_t;
  using Inputs = int32x2_t;
  static constexpr int kMaxSums = 24;

  QCORE_NUMERIC Weights load(const std::int8_t* w) { return CellNeon::load(w); }
  QCORE_NUMERIC Inputs spread(const std::uint8_t* u) {
    std::int32_t four;
    memcpy(&four, u, 4);
    return veor_s32(vdup_n_s32(four), vreinterpret_s32_u8(vdup_n_u8(128)));
  }
  QCORE_NUMERIC void multiply(int32x4_t& sum, Inputs u, Weights w) {
    asm("sdot %0.4s, %1.16b, %2.4b[0]" : "+w"(sum) : "w"(w), "w"(u));
  }
};

}  // namespace
}  // namespace qcore
