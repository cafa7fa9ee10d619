#pragma once

#include "simd/vector_neon.h"

// Provides the operations of numerics/lanes.h, and those of simd/vector_neon.h, for 4 lanes.
namespace qcore {
namespace {

struct NeonLanes : Neon {
  static constexpr int kWidth = 4;
  using F = float32x4_t;
  using I = int32x4_t;
  struct M {
    uint32x4_t bits;
  };

  using Neon::add;
  using Neon::load;
  using Neon::store;
  using Neon::sub;

  QCORE_NUMERIC F set(float x) { return vdupq_n_f32(x); }
  QCORE_NUMERIC I set(std::int32_t x) { return vdupq_n_s32(x); }
  QCORE_NUMERIC I load(const std::int32_t* x) { return vld1q_s32(x); }
  QCORE_NUMERIC void store(std::int32_t* y, I x) { vst1q_s32(y, x); }

  QCORE_NUMERIC F div(F x, F y) { return vdivq_f32(x, y); }
  QCORE_NUMERIC F floor(F x) { return vrndmq_f32(x); }
  QCORE_NUMERIC F round_even(F x) { return vrndnq_f32(x); }
  QCORE_NUMERIC F at_least(F x, F low) { return vbslq_f32(vcgtq_f32(x, low), x, low); }
  QCORE_NUMERIC F at_most(F x, F high) { return vbslq_f32(vcltq_f32(x, high), x, high); }
  QCORE_NUMERIC F limited(F x, F bound) { return at_most(at_least(x, vnegq_f32(bound)), bound); }

  QCORE_NUMERIC I join(I x, I mask, I y) { return bit_or(bit_and(x, mask), y); }
  QCORE_NUMERIC I truncate(F x) { return vcvtq_s32_f32(x); }
  QCORE_NUMERIC I bits(F x) { return vreinterpretq_s32_f32(x); }
  QCORE_NUMERIC F from_bits(I i) { return vreinterpretq_f32_s32(i); }

  QCORE_NUMERIC I sub(I x, I y) { return vsubq_s32(x, y); }
  QCORE_NUMERIC I larger(I x, I y) { return vmaxq_s32(x, y); }
  template <int kBits>
  QCORE_NUMERIC I shift_left(I x) {
    return vshlq_n_s32(x, kBits);
  }
  template <int kBits>
  QCORE_NUMERIC I shift_right(I x) {
    return vshrq_n_s32(x, kBits);
  }

  QCORE_NUMERIC M less(F x, F y) { return {vcltq_f32(x, y)}; }
  QCORE_NUMERIC M is_nan(F x) { return {vmvnq_u32(vceqq_f32(x, x))}; }
  QCORE_NUMERIC M either(M x, M y) { return {vorrq_u32(x.bits, y.bits)}; }
  QCORE_NUMERIC F select(M m, F yes, F no) { return vbslq_f32(m.bits, yes, no); }
  QCORE_NUMERIC I select(M m, I yes, I no) { return vbslq_s32(m.bits, yes, no); }
};

}  // namespace
}  // namespace qcore
