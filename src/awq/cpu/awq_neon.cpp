#include "awq/cpu/awq_columns_neon.h"
#include "awq/cpu/awq_lanes.h"
#include "simd/vector_neon.h"

namespace qcore {
namespace {

// One word in two registers.
struct AwqVector128 {
  using Word = AwqVector128;
  static constexpr int kLanes = 8;
  struct Int {
    int32x4_t low, high;
  };
  struct Float {
    float32x4_t low, high;
  };

  QCORE_NUMERIC Float load(const float* p) { return {Neon::load(p), Neon::load(p + 4)}; }
  QCORE_NUMERIC void store(float* p, Float a) {
    Neon::store(p, a.low);
    Neon::store(p + 4, a.high);
  }
  QCORE_NUMERIC void store(std::uint8_t* p, Int a) {
    Neon::store(p, a.low);
    Neon::store(p + 16, a.high);
  }
  QCORE_NUMERIC Int set1(std::int32_t a) { return {Neon::set1(a), Neon::set1(a)}; }
  QCORE_NUMERIC Float set1(float a) { return {Neon::set1(a), Neon::set1(a)}; }
  QCORE_NUMERIC Int bit_and(Int a, Int b) { return {Neon::bit_and(a.low, b.low), Neon::bit_and(a.high, b.high)}; }
  QCORE_NUMERIC Int bit_or(Int a, Int b) { return {Neon::bit_or(a.low, b.low), Neon::bit_or(a.high, b.high)}; }
  QCORE_NUMERIC Int shift_left_32(Int a, int n) {
    return {Neon::shift_left_32(a.low, n), Neon::shift_left_32(a.high, n)};
  }
  QCORE_NUMERIC Float sub(Float a, Float b) { return {Neon::sub(a.low, b.low), Neon::sub(a.high, b.high)}; }
  QCORE_NUMERIC Float mul(Float a, Float b) { return {Neon::mul(a.low, b.low), Neon::mul(a.high, b.high)}; }
  QCORE_NUMERIC Float fma(Float a, Float b, Float c) {
    return {Neon::fma(a.low, b.low, c.low), Neon::fma(a.high, b.high, c.high)};
  }
  QCORE_NUMERIC Float load_half(const std::uint16_t* p) { return {Neon::load_half(p), Neon::load_half(p + 4)}; }
  QCORE_NUMERIC void store_half(std::uint16_t* p, Float a) {
    Neon::store_half(p, a.low);
    Neon::store_half(p + 4, a.high);
  }

  // A shift to the left by a negative number is one to the right.
  QCORE_NUMERIC Int spread(const std::uint32_t* words) {
    using numerics::awq_shift;
    const int32x4_t low = {-awq_shift(0), -awq_shift(1), -awq_shift(2), -awq_shift(3)};
    const int32x4_t high = {-awq_shift(4), -awq_shift(5), -awq_shift(6), -awq_shift(7)};
    const uint32x4_t word = vdupq_n_u32(*words);
    return {vreinterpretq_s32_u32(vshlq_u32(word, low)), vreinterpretq_s32_u32(vshlq_u32(word, high))};
  }
  QCORE_NUMERIC Float nibbles(Int spread) {
    const Int bits = bit_or(bit_and(spread, set1(15)), set1(numerics::kAwqBiasBits));
    return {Neon::as_float(bits.low), Neon::as_float(bits.high)};
  }
  QCORE_NUMERIC Float code(Int spread) {
    return sub(nibbles(spread), set1(numerics::kAwqBias + static_cast<float>(numerics::kAwqMiddle)));
  }
  template <bool stream>
  QCORE_NUMERIC void store_pair(std::uint16_t* to, Float a, Float b) {
    store_half(to, a);
    store_half(to + kLanes, b);
  }
  QCORE_NUMERIC void fence() {}
};

}  // namespace

extern const AwqKernels kAwqNeon{awq_load_group<AwqVector128>, awq_store_rows_either<AwqVector128>,
                                 awq_store_columns<AwqColumns128>, awq_add_products<AwqVector128>,
                                 awq_pack_panel<AwqVector128>};

}  // namespace qcore
