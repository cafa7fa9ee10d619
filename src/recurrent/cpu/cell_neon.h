#pragma once

#include "simd/vector_neon.h"

namespace qcore {
namespace {

// Provides the operations of cell_avx512.h for 128-bit registers.
struct CellNeon : Neon {
  static constexpr bool kLooksUpLevels = false;
  struct Wide {
    int64x2_t lo, hi;
  };

  using Base = Neon;
  using Base::add;
  using Base::bit_and;
  using Base::mul;
  using Base::sub;

  QCORE_NUMERIC Int sub(Int a, Int b) { return vsubq_s32(a, b); }
  QCORE_NUMERIC Int mul(Int a, Int b) { return vmulq_s32(a, b); }
  QCORE_NUMERIC Int exclusive(Int a, Int b) { return veorq_s32(a, b); }
  QCORE_NUMERIC Int smaller(Int a, Int b) { return vminq_s32(a, b); }
  QCORE_NUMERIC Int larger(Int a, Int b) { return vmaxq_s32(a, b); }
  QCORE_NUMERIC Int sign(Int a) { return vshrq_n_s32(a, 31); }
  // A shift to the left by a negative number is one to the right.
  QCORE_NUMERIC Int shift_right(Int a, int n) { return vshlq_s32(a, vdupq_n_s32(-n)); }
  QCORE_NUMERIC Int shift_left(Int a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }
  QCORE_NUMERIC Int shift_right(Int a, Int n) { return vshlq_s32(a, vnegq_s32(n)); }
  QCORE_NUMERIC Int shift_left(Int a, Int n) { return vshlq_s32(a, n); }

  QCORE_NUMERIC Wide widen(Int a) { return {vmovl_s32(vget_low_s32(a)), vmovl_high_s32(a)}; }
  QCORE_NUMERIC Int narrow(Wide a) { return vuzp1q_s32(vreinterpretq_s32_s64(a.lo), vreinterpretq_s32_s64(a.hi)); }
  QCORE_NUMERIC Wide all_wide(std::int64_t a) { return {vdupq_n_s64(a), vdupq_n_s64(a)}; }
  QCORE_NUMERIC Wide load_wide(const std::int64_t* p) { return {vld1q_s64(p), vld1q_s64(p + 2)}; }
  QCORE_NUMERIC Wide add(Wide a, Wide b) { return {vaddq_s64(a.lo, b.lo), vaddq_s64(a.hi, b.hi)}; }
  QCORE_NUMERIC Wide negative(Wide a) { return {vnegq_s64(a.lo), vnegq_s64(a.hi)}; }
  QCORE_NUMERIC Wide bit_and(Wide a, Wide b) { return {vandq_s64(a.lo, b.lo), vandq_s64(a.hi, b.hi)}; }
  QCORE_NUMERIC Wide multiply_wide(Int a, Int b) {
    return {vmull_s32(vget_low_s32(a), vget_low_s32(b)), vmull_high_s32(a, b)};
  }
  QCORE_NUMERIC Wide sign(Wide a) { return {vshrq_n_s64(a.lo, 63), vshrq_n_s64(a.hi, 63)}; }
  QCORE_NUMERIC Wide shift_right(Wide a, Wide n) {
    return {vshlq_s64(a.lo, vnegq_s64(n.lo)), vshlq_s64(a.hi, vnegq_s64(n.hi))};
  }
  QCORE_NUMERIC Wide shift_left(Wide a, Wide n) { return {vshlq_s64(a.lo, n.lo), vshlq_s64(a.hi, n.hi)}; }
  QCORE_NUMERIC Wide limited(Wide a, std::int64_t lo, std::int64_t hi) {
    return {limited64(a.lo, lo, hi), limited64(a.hi, lo, hi)};
  }

  QCORE_NUMERIC Int load_words(const std::int16_t* p) { return vmovl_s16(vld1_s16(p)); }
  QCORE_NUMERIC void store_words(std::int16_t* p, Int a) { vst1_s16(p, vqmovn_s32(a)); }
  QCORE_NUMERIC void store_bytes(std::uint8_t* p, Int a) {
    const uint16x4_t words = vmovn_u32(vreinterpretq_u32_s32(a));
    const std::uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0);
    memcpy(p, &four, 4);
  }

 private:
  QCORE_NUMERIC int64x2_t limited64(int64x2_t a, std::int64_t lo, std::int64_t hi) {
    const int64x2_t low = vdupq_n_s64(lo), high = vdupq_n_s64(hi);
    const int64x2_t raised = vbslq_s64(vcgtq_s64(low, a), low, a);
    return vbslq_s64(vcgtq_s64(raised, high), high, raised);
  }
};

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

}  // namespace
}  // namespace qcore
