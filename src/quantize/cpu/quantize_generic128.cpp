#include "quantize/cpu/block_search_lanes.h"
#include "quantize/cpu/quantize_lanes.h"
#include "simd/lanes_generic128.h"

namespace qcore {
namespace {

// Four lanes of block_search_lanes.h.
struct Search : GenericLanes128 {
  using Mask = Int;
  struct Doubles {
    Doubles2 low, high;
  };
  struct WideMask {
    Longs low, high;
  };

  using GenericLanes128::add;
  using GenericLanes128::any;
  using GenericLanes128::div;
  using GenericLanes128::mul;
  using GenericLanes128::select;
  using GenericLanes128::sub;

  using GenericLanes128::fma;
  QCORE_NUMERIC F minus_product(F a, F b, F c) { return fma(-b, c, a); }
  QCORE_NUMERIC F as_half(F a) {
    std::uint16_t words[kLanes];
    store_half(words, a);
    return load_half(words);
  }
  QCORE_NUMERIC F reciprocal_or_zero(F inverse, F a) {
    return from_bits(bits(set(1.0f) / a) & ((inverse != set(0.0f)) & (a != set(0.0f))));
  }

  QCORE_NUMERIC Mask is_finite(F a) {
    const I infinity = set(static_cast<std::int32_t>(numerics::kInfinityBits));
    return (bits(a) & infinity) != infinity;
  }
  QCORE_NUMERIC Mask is_nonzero(F a) { return a != set(0.0f); }  // where it is finite
  QCORE_NUMERIC Mask greater(F a, F b) { return a > b; }
  QCORE_NUMERIC Mask both(Mask a, Mask b) { return a & b; }
  QCORE_NUMERIC Mask all() { return set(-1); }
  QCORE_NUMERIC bool every(Mask a) { return !any(~a); }

  QCORE_NUMERIC F lookup(const float* table, F biased) {
    const I at = sub(bits(biased), set(static_cast<std::int32_t>(kRoundBits)));
    return F{table[at[0]], table[at[1]], table[at[2]], table[at[3]]};
  }
  QCORE_NUMERIC void store_codes(std::int8_t* to, F a) { store_low_bytes(to, to_int(a)); }

  QCORE_NUMERIC Doubles set_doubles(double a) { return {Doubles2{a, a}, Doubles2{a, a}}; }
  QCORE_NUMERIC Doubles to_doubles(F a) { return {to_doubles_low(a), to_doubles_high(a)}; }
  QCORE_NUMERIC F to_floats(Doubles a) { return Generic128::to_floats(a.low, a.high); }
  QCORE_NUMERIC Doubles add(Doubles a, Doubles b) { return {a.low + b.low, a.high + b.high}; }
  QCORE_NUMERIC Doubles sub(Doubles a, Doubles b) { return {a.low - b.low, a.high - b.high}; }
  QCORE_NUMERIC Doubles mul(Doubles a, Doubles b) { return {a.low * b.low, a.high * b.high}; }
  QCORE_NUMERIC Doubles div(Doubles a, Doubles b) { return {a.low / b.low, a.high / b.high}; }
  QCORE_NUMERIC Doubles fma(Doubles a, Doubles b, Doubles c) {
    return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
  }
  QCORE_NUMERIC Doubles minus_product(Doubles a, Doubles b, Doubles c) {
    return {fma(-b.low, c.low, a.low), fma(-b.high, c.high, a.high)};
  }
  QCORE_NUMERIC Doubles load_doubles(const double* p) { return {Doubles2{p[0], p[1]}, Doubles2{p[2], p[3]}}; }
  QCORE_NUMERIC double total(Doubles a) {
    const Doubles2 sums = a.low + a.high;
    return sums[0] + sums[1];
  }
  QCORE_NUMERIC WideMask is_less(Doubles a, Doubles b) { return {(Longs)(a.low < b.low), (Longs)(a.high < b.high)}; }
  QCORE_NUMERIC WideMask both(WideMask a, WideMask b) { return {a.low & b.low, a.high & b.high}; }
  QCORE_NUMERIC Doubles select(WideMask mask, Doubles yes, Doubles no) {
    return {select(mask.low, yes.low, no.low), select(mask.high, yes.high, no.high)};
  }
  QCORE_NUMERIC Mask narrow_mask(WideMask mask) {
    return __builtin_shufflevector((I)mask.low, (I)mask.high, 0, 2, 4, 6);
  }
  QCORE_NUMERIC WideMask wide_mask(Mask mask) {
    return {(Longs)fold_low<0>(mask, mask), (Longs)fold_high<0>(mask, mask)};
  }

 private:
  QCORE_NUMERIC Doubles2 fma(Doubles2 a, Doubles2 b, Doubles2 c) {
    return Doubles2{__builtin_fma(a[0], b[0], c[0]), __builtin_fma(a[1], b[1], c[1])};
  }
  QCORE_NUMERIC Doubles2 select(Longs mask, Doubles2 yes, Doubles2 no) {
    return (Doubles2)((mask & (Longs)yes) | (~mask & (Longs)no));
  }
};

void load(const void* x, bool bfloat, std::int64_t count, float* values) {
  load_lanes<Generic128>(x, bfloat, count, values);
}

BlockScale quantize_block(const float* values, std::int64_t count, const NearestForm& form, std::int8_t* codes) {
  return quantize_lanes<Generic128>(values, count, form, codes);
}

using Encoded = EncodedLanes<Search>;

}  // namespace

extern const QuantizeKernels kQuantizeGeneric128{
    load,
    quantize_block,
    search_blocks<Search>,
    {Encoded::run<Encoded::Errors>, Encoded::run<Encoded::Moments>, Encoded::codes}};

}  // namespace qcore
