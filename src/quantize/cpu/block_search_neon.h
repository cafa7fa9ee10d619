#pragma once

#include "quantize/cpu/block_search_lanes.h"
#include "simd/lanes_neon.h"

namespace qcore {
namespace {

// Four lanes of block_search_lanes.h.
struct SearchNeon : NeonLanes {
  using Mask = uint32x4_t;
  struct Doubles {
    float64x2_t low, high;
  };
  struct WideMask {
    uint64x2_t low, high;
  };

  using NeonLanes::add;
  using NeonLanes::div;
  using NeonLanes::fma;
  using NeonLanes::mul;
  using NeonLanes::select;
  using NeonLanes::sub;

  QCORE_NUMERIC F minus_product(F a, F b, F c) { return vfmsq_f32(a, b, c); }
  QCORE_NUMERIC F as_half(F a) { return vcvt_f32_f16(vcvt_f16_f32(a)); }
  QCORE_NUMERIC F reciprocal_or_zero(F inverse, F a) {
    const Mask none = vorrq_u32(vceqzq_f32(inverse), vceqzq_f32(a));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(div(set(1.0f), a)), none));
  }

  QCORE_NUMERIC Mask is_finite(F a) {
    const Mask infinity = vdupq_n_u32(numerics::kInfinityBits);
    return vmvnq_u32(vceqq_u32(vandq_u32(vreinterpretq_u32_f32(a), infinity), infinity));
  }
  QCORE_NUMERIC Mask is_nonzero(F a) { return vmvnq_u32(vceqzq_f32(a)); }  // where it is finite
  QCORE_NUMERIC Mask greater(F a, F b) { return vcgtq_f32(a, b); }
  QCORE_NUMERIC Mask both(Mask a, Mask b) { return vandq_u32(a, b); }
  QCORE_NUMERIC bool any(Mask a) { return vmaxvq_u32(a) != 0; }
  QCORE_NUMERIC bool every(Mask a) { return vminvq_u32(a) != 0; }
  QCORE_NUMERIC Mask all() { return vdupq_n_u32(~0u); }
  QCORE_NUMERIC F select(Mask mask, F yes, F no) { return vbslq_f32(mask, yes, no); }

  QCORE_NUMERIC F lookup(const float* table, F biased) {
    std::int32_t at[4];
    vst1q_s32(at, vsubq_s32(vreinterpretq_s32_f32(biased), vdupq_n_s32(static_cast<std::int32_t>(kRoundBits))));
    return F{table[at[0]], table[at[1]], table[at[2]], table[at[3]]};
  }
  QCORE_NUMERIC void store_codes(std::int8_t* to, F a) {
    const int16x4_t words = vqmovn_s32(to_int(a));
    const std::int32_t four = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(words, words))), 0);
    memcpy(to, &four, 4);
  }

  QCORE_NUMERIC Doubles set_doubles(double a) { return {vdupq_n_f64(a), vdupq_n_f64(a)}; }
  QCORE_NUMERIC Doubles to_doubles(F a) { return {vcvt_f64_f32(vget_low_f32(a)), vcvt_high_f64_f32(a)}; }
  QCORE_NUMERIC F to_floats(Doubles a) { return vcvt_high_f32_f64(vcvt_f32_f64(a.low), a.high); }
  QCORE_NUMERIC Doubles add(Doubles a, Doubles b) { return {vaddq_f64(a.low, b.low), vaddq_f64(a.high, b.high)}; }
  QCORE_NUMERIC Doubles sub(Doubles a, Doubles b) { return {vsubq_f64(a.low, b.low), vsubq_f64(a.high, b.high)}; }
  QCORE_NUMERIC Doubles mul(Doubles a, Doubles b) { return {vmulq_f64(a.low, b.low), vmulq_f64(a.high, b.high)}; }
  QCORE_NUMERIC Doubles fma(Doubles a, Doubles b, Doubles c) {
    return {vfmaq_f64(c.low, a.low, b.low), vfmaq_f64(c.high, a.high, b.high)};
  }
  QCORE_NUMERIC Doubles minus_product(Doubles a, Doubles b, Doubles c) {
    return {vfmsq_f64(a.low, b.low, c.low), vfmsq_f64(a.high, b.high, c.high)};
  }
  QCORE_NUMERIC Doubles load_doubles(const double* p) { return {vld1q_f64(p), vld1q_f64(p + 2)}; }
  QCORE_NUMERIC Doubles div(Doubles a, Doubles b) { return {vdivq_f64(a.low, b.low), vdivq_f64(a.high, b.high)}; }
  QCORE_NUMERIC double total(Doubles a) { return vaddvq_f64(vaddq_f64(a.low, a.high)); }
  QCORE_NUMERIC WideMask is_less(Doubles a, Doubles b) { return {vcltq_f64(a.low, b.low), vcltq_f64(a.high, b.high)}; }
  QCORE_NUMERIC WideMask both(WideMask a, WideMask b) { return {vandq_u64(a.low, b.low), vandq_u64(a.high, b.high)}; }
  QCORE_NUMERIC Doubles select(WideMask mask, Doubles yes, Doubles no) {
    return {vbslq_f64(mask.low, yes.low, no.low), vbslq_f64(mask.high, yes.high, no.high)};
  }
  QCORE_NUMERIC Mask narrow_mask(WideMask mask) { return vmovn_high_u64(vmovn_u64(mask.low), mask.high); }
  QCORE_NUMERIC WideMask wide_mask(Mask mask) {
    const int32x4_t bits = vreinterpretq_s32_u32(mask);
    return {vreinterpretq_u64_s64(vmovl_s32(vget_low_s32(bits))), vreinterpretq_u64_s64(vmovl_high_s32(bits))};
  }
};

}  // namespace
}  // namespace qcore
