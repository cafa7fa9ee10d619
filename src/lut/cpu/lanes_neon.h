#pragma once

#include "lut/table_arrays.h"
#include "simd/lanes_neon.h"

// 4 lanes in a NEON vector, and tables for them.
namespace qcore {
namespace {

struct LutLanesNeon : NeonLanes {
  // This instruction set has no stores past the caches that gain anything by themselves.
  QCORE_NUMERIC void stream(float* y, F x) { store(y, x); }
  QCORE_NUMERIC void stream_half(std::uint16_t* y, F x) { store_half(y, x); }
  QCORE_NUMERIC void stream_bfloat(std::uint16_t* y, F x) { store_bfloat(y, x); }
  QCORE_NUMERIC void fence() {}
  QCORE_NUMERIC std::uint32_t any_nan(F) { return 1; }  // a choice in each vector costs no more than finding out
};

// Loads, because there are no gathers.
template <class Vector, class Element>
QCORE_NUMERIC Vector gathered(const Element* table, int32x4_t i) {
  return Vector{table[vgetq_lane_s32(i, 0)], table[vgetq_lane_s32(i, 1)], table[vgetq_lane_s32(i, 2)],
                table[vgetq_lane_s32(i, 3)]};
}

// Any table.
struct MemoryTable128 : numerics::LutOneStep<LutLanesNeon, MemoryTable128> {
  using L = LutLanesNeon;
  const numerics::LutView* t;

  QCORE_INLINE explicit MemoryTable128(const numerics::LutView& view) : t(&view) {}

  QCORE_INLINE L::F low() const { return L::set(t->low()); }
  QCORE_INLINE L::F high() const { return L::set(t->high()); }
  QCORE_INLINE L::I interval(L::F x) const {
    L::I i = L::set(0);
    for (std::int32_t k = 1; k <= t->intervals; ++k)  // a comparison's lanes are 0 or -1
      i = L::sub(i, vreinterpretq_s32_u32(vcgeq_f32(x, L::set(t->cuts[k]))));
    return i;
  }
  QCORE_INLINE L::F position(L::F x, L::I i) const {
    const L::F p = L::mul(L::sub(x, gathered<L::F>(t->cuts, i)), gathered<L::F>(t->scales, i));
    return L::at_most(p, gathered<L::F>(t->lengths, i));
  }
  QCORE_INLINE void place(L::F p, L::I i, L::I& q, L::F& a) const {
    const L::I j = L::truncate(p);
    q = L::add(gathered<L::I>(t->firsts, i), j);
    a = L::sub(p, L::to_float(j));
  }
  QCORE_INLINE void entry(L::I q, L::F& value, L::F& delta) const {
    value = gathered<L::F>(t->values, q);
    delta = gathered<L::F>(t->deltas, q);
  }
};

// The same for few intervals, whose numbers are looked up in four registers.
struct PermutedTable128 : numerics::LutOneStep<LutLanesNeon, PermutedTable128> {
  using L = LutLanesNeon;

  QCORE_INLINE PermutedTable128(const numerics::LutView& view, const LutRegisters& table) : t(&view), r(&table) {}

  QCORE_INLINE L::F low() const { return L::set(r->low); }
  QCORE_INLINE L::F high() const { return L::set(r->high); }
  QCORE_INLINE L::I interval(L::F x) const {
    L::I i = L::set(0);
    for (int k = 0; k < LutRegisters::kIntervals; ++k)
      i = L::sub(i, vreinterpretq_s32_u32(vcgeq_f32(x, L::load(r->cut_vectors[k]))));
    return i;
  }
  QCORE_INLINE L::F position(L::F x, L::I i) const {
    return L::mul(L::sub(x, permuted(i, r->cuts)), permuted(i, r->scales));
  }
  QCORE_INLINE void place(L::F p, L::I i, L::I& q, L::F& a) const {
    const L::I j = L::truncate(p);
    const L::I counted = L::sub(L::bits(permuted(i, r->firsts)), L::bits(L::set(LutRegisters::kCount)));
    q = L::add(counted, j);
    a = L::sub(p, L::to_float(j));
  }
  QCORE_INLINE void entry(L::I q, L::F& value, L::F& delta) const {
    value = gathered<L::F>(t->values, q);
    delta = gathered<L::F>(t->deltas, q);
  }

 private:
  // Four bytes of the table for each lane: 4 i, 4 i + 1, and so on.
  QCORE_NUMERIC L::F permuted(L::I i, const float* table) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(table);
    const uint8x16x4_t all = {{vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
    const L::I at = vmlaq_s32(L::set(0x03020100), i, L::set(0x04040404));
    return vreinterpretq_f32_u8(vqtbl4q_u8(all, vreinterpretq_u8_s32(at)));
  }

  const numerics::LutView* t;
  const LutRegisters* r;
};

}  // namespace
}  // namespace qcore
