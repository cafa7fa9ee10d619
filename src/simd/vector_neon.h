#pragma once

#include <arm_neon.h>

#include "numerics/portable.h"

// Provides the operations of vector_avx2.h for the 128-bit registers of AArch64, whose baseline has all of them.
namespace qcore {
namespace {

struct Neon {
  static constexpr int kLanes = 4;
  using Int = int32x4_t;
  using Float = float32x4_t;

  QCORE_NUMERIC Int load(const void* p) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const std::uint8_t*>(p))); }
  QCORE_NUMERIC void store(void* p, Int a) { vst1q_u8(static_cast<std::uint8_t*>(p), vreinterpretq_u8_s32(a)); }
  QCORE_NUMERIC Float load(const float* p) { return vld1q_f32(p); }
  QCORE_NUMERIC void store(float* p, Float a) { vst1q_f32(p, a); }
  QCORE_NUMERIC Int set1(std::int32_t a) { return vdupq_n_s32(a); }
  QCORE_NUMERIC Float set1(float a) { return vdupq_n_f32(a); }

  QCORE_NUMERIC Int bit_and(Int a, Int b) { return vandq_s32(a, b); }
  QCORE_NUMERIC Int bit_or(Int a, Int b) { return vorrq_s32(a, b); }
  QCORE_NUMERIC Int high_nibbles(Int a) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(a), 4)); }
  QCORE_NUMERIC Int add_bytes(Int a, Int b) {
    return vreinterpretq_s32_u8(vaddq_u8(vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b)));
  }
  QCORE_NUMERIC Int load_table(const void* p) { return load(p); }
  QCORE_NUMERIC Int look_up(Int table, Int indices) {
    return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(indices)));
  }
  QCORE_NUMERIC Int add(Int a, Int b) { return vaddq_s32(a, b); }
  QCORE_NUMERIC Int max(Int a, Int b) { return vmaxq_s32(a, b); }
  // Operators, because the intrinsics want a literal, and the compiler sees the same constant here.
  QCORE_NUMERIC Int shift_left_16(Int a, int n) { return vreinterpretq_s32_u16(vreinterpretq_u16_s32(a) << n); }
  QCORE_NUMERIC Int shift_right_16(Int a, int n) { return vreinterpretq_s32_u16(vreinterpretq_u16_s32(a) >> n); }
  QCORE_NUMERIC Int shift_right_32(Int a, int n) { return vreinterpretq_s32_u32(vreinterpretq_u32_s32(a) >> n); }
  QCORE_NUMERIC Int shift_left_32(Int a, int n) { return vreinterpretq_s32_u32(vreinterpretq_u32_s32(a) << n); }
  using RowBytes = uint8x16_t;
  QCORE_NUMERIC RowBytes load_rows(const void* p) { return vld1q_u8(static_cast<const std::uint8_t*>(p)); }
  QCORE_NUMERIC RowBytes row_field(RowBytes a, int right, int mask) {
    const uint8x16_t moved = right < 0 ? a << -right : a >> right;
    return vandq_u8(moved, vdupq_n_u8(static_cast<std::uint8_t>(mask)));
  }
  QCORE_NUMERIC RowBytes row_or(RowBytes a, RowBytes b) { return vorrq_u8(a, b); }
  QCORE_NUMERIC Int widen_rows(RowBytes a, int part) {
    const uint16x8_t words = part < 2 ? vmovl_u8(vget_low_u8(a)) : vmovl_high_u8(a);
    return vreinterpretq_s32_u32(part % 2 ? vmovl_high_u16(words) : vmovl_u16(vget_low_u16(words)));
  }
  QCORE_NUMERIC Int load_bytes(const void* p) {
    std::uint32_t four;
    memcpy(&four, p, 4);
    return widen_rows(vreinterpretq_u8_u32(vdupq_n_u32(four)), 0);
  }
  QCORE_NUMERIC Float as_float(Int a) { return vreinterpretq_f32_s32(a); }
  QCORE_NUMERIC Int as_int(Float a) { return vreinterpretq_s32_f32(a); }

  QCORE_NUMERIC Float add(Float a, Float b) { return vaddq_f32(a, b); }
  QCORE_NUMERIC Float sub(Float a, Float b) { return vsubq_f32(a, b); }
  QCORE_NUMERIC Float mul(Float a, Float b) { return vmulq_f32(a, b); }
  QCORE_NUMERIC Float fma(Float a, Float b, Float c) { return vfmaq_f32(c, a, b); }
  // Comparisons, because fmax and fmin of this instruction set return a NaN and order the two zeros.
  QCORE_NUMERIC Float at_least(Float x, Float lo) { return vbslq_f32(vcgtq_f32(lo, x), lo, x); }
  QCORE_NUMERIC Float at_most(Float x, Float hi) { return vbslq_f32(vcgtq_f32(x, hi), hi, x); }

  static constexpr int kFolds = 2;
  template <int level>
  QCORE_NUMERIC Int fold_low(Int a, Int b) {
    return level == 0 ? vzip1q_s32(a, b)
                      : vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
  }
  template <int level>
  QCORE_NUMERIC Int fold_high(Int a, Int b) {
    return level == 0 ? vzip2q_s32(a, b)
                      : vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
  }
  template <int level>
  QCORE_NUMERIC Float fold_low(Float a, Float b) {
    return as_float(fold_low<level>(as_int(a), as_int(b)));
  }
  template <int level>
  QCORE_NUMERIC Float fold_high(Float a, Float b) {
    return as_float(fold_high<level>(as_int(a), as_int(b)));
  }

  QCORE_NUMERIC std::int32_t largest(Int a) { return vmaxvq_s32(a); }
  QCORE_NUMERIC float largest(Float a) { return vmaxvq_f32(a); }
  QCORE_NUMERIC float smallest(Float a) { return vminvq_f32(a); }

  QCORE_NUMERIC Float to_float(Int a) { return vcvtq_f32_s32(a); }
  static constexpr bool kLooksUpNibbles = false;
  QCORE_NUMERIC Float nibbles(const float* numbers) { return set1(numbers[0]); }

  template <int Bits>
  QCORE_NUMERIC Float code_at(Int stored, int shift, Float lowest) {
    const Int code = bit_and(shift_right_32(stored, shift), set1((1 << Bits) - 1));
    return add(to_float(code), Bits == 4 ? lowest : set1(-128.0f));
  }
  QCORE_NUMERIC Int to_int(Float a) { return vcvtnq_s32_f32(a); }  // half to even

  QCORE_NUMERIC Float load_half(const void* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(static_cast<const std::uint16_t*>(p))));
  }
  QCORE_NUMERIC Float load_bfloat(const void* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(static_cast<const std::uint16_t*>(p)), 16));
  }
  QCORE_NUMERIC void store_half(void* p, Float a) {
    vst1_u16(static_cast<std::uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(a)));
  }
  // numerics::float_to_bfloat() in each lane.
  QCORE_NUMERIC void store_bfloat(void* p, Float a) {
    const Int bits = as_int(a), high = shift_right_32(bits, 16);
    const Int rounded = shift_right_32(add(add(bits, set1(0x7fff)), bit_and(high, set1(1))), 16);
    const Int quiet = bit_or(high, set1(0x40));
    const Int result = vbslq_s32(vceqq_f32(a, a), rounded, quiet);
    vst1_u16(static_cast<std::uint16_t*>(p), vmovn_u32(vreinterpretq_u32_s32(result)));
  }
  QCORE_NUMERIC Int first_lanes(int count) {
    const Int numbers = {0, 1, 2, 3};
    return vreinterpretq_s32_u32(vcgtq_s32(set1(count), numbers));
  }
  QCORE_NUMERIC Float load_first(const float* p, int count) {
    Float values = set1(0.0f);
    if (count > 0) values = vld1q_lane_f32(p, values, 0);
    if (count > 1) values = vld1q_lane_f32(p + 1, values, 1);
    if (count > 2) values = vld1q_lane_f32(p + 2, values, 2);
    if (count > 3) values = vld1q_lane_f32(p + 3, values, 3);
    return values;
  }
  QCORE_NUMERIC Int keep_first(Int a, int count) { return bit_and(a, first_lanes(count)); }

  QCORE_NUMERIC int16x8_t narrow_pair(Int a, Int b) {
    return vuzp1q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
  }
  QCORE_NUMERIC Int narrow_to_bytes(const Int (&parts)[4]) {
    const int8x16_t low = vreinterpretq_s8_s16(narrow_pair(parts[0], parts[1]));
    const int8x16_t high = vreinterpretq_s8_s16(narrow_pair(parts[2], parts[3]));
    return vreinterpretq_s32_s8(vuzp1q_s8(low, high));
  }
  QCORE_NUMERIC Int narrow_to_words(const Int (&parts)[2]) {
    const uint8x16_t order = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
    return look_up(vreinterpretq_s32_s16(narrow_pair(parts[0], parts[1])), vreinterpretq_s32_u8(order));
  }
};

}  // namespace
}  // namespace qcore
