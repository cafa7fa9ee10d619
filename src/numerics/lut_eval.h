#pragma once

#include "numerics/portable.h"

// Piecewise-linear look-up tables. Cut points c_0 < ... < c_n bound n intervals; interval i has len_i equal segments
// (the first and the last have 1), whose ends are entries of the table:
//   x = clamp(x, c_0, c_n);  i = last i < n with c_i <= x;  p = min((x - c_i) * s_i, len_i), s_i = len_i / (c_i+1 - c_i)
//   j = floor(p);  y = t[first_i + j] + (p - j) * delta[first_i + j],  one fma;  delta[q] = t[q+1] - t[q], the last is 0
// Every operation is rounded to fp32 once. Results are clamped to +-65504, and a NaN gives the NaN 0x7fc00000.
//
// `L` has the operations on lanes (lanes.h), `T` a table's look-ups on lanes of indices:
//   I interval(F x); F cut(I i), scale(I i), length(I i); I first(I i); void entry(I q, F& value, F& delta);
//   F low(), high(): c_0 and c_n
namespace qcore::numerics {

// What is done around the table, so that it covers one binade (or one period) only. Documented at reduce_and_look_up.
enum class LutReduction : std::uint8_t { none, exp, log, reciprocal, sqrt, rsqrt, periodic };

constexpr float kLutLimit = 65504.0f;  // the largest fp16
constexpr std::uint32_t kLutMantissaBits = 0x7fffffu;
constexpr std::uint32_t kRootHalfBits = 0x3f3504f3u;  // sqrt(1/2), rounded down: where log's binade begins
constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;
constexpr float kInverseTwoPi = 0.15915494309189533577f;
// 2 pi as a sum of fp32 numbers. Of k * kTwoPi1, fma keeps every bit that x - k * kTwoPi1 needs for |x| <= 65504.
constexpr float kTwoPi1 = 6.28318548202514648438f, kTwoPi2 = -1.74845553146951715462e-7f,
                kTwoPi3 = -6.86049804002352749e-15f;

template <class L, class T>
QCORE_NUMERIC typename L::F look_up(typename L::F x, const T& table) {
  x = L::at_most(L::at_least(x, table.low()), table.high());
  const auto i = table.interval(x);
  const auto p = L::at_most(L::mul(L::sub(x, table.cut(i)), table.scale(i)), table.length(i));
  const auto j = L::truncate(p);
  typename L::F value, delta;
  table.entry(L::add(table.first(i), j), value, delta);
  return L::fma(L::sub(p, L::to_float(j)), delta, value);
}

// Of an exponent with the bias of 127; 0 gives 0.
template <class L>
QCORE_NUMERIC typename L::F power_of_two(typename L::I biased_exponent) {
  return L::from_bits(L::template shift_left<23>(biased_exponent));
}

template <class L>
QCORE_NUMERIC typename L::F with_sign_of(typename L::F magnitude, typename L::F x) {
  return L::from_bits(L::bit_or(L::bits(magnitude), L::bit_and(L::bits(x), L::set(static_cast<std::int32_t>(0x80000000u)))));
}

template <class L>
QCORE_NUMERIC typename L::F magnitude_of(typename L::F x) {
  return L::from_bits(L::bit_and(L::bits(x), L::set(0x7fffffff)));
}

// Multiplies subnormal numbers by 2^24, so that their exponent can be read.
template <class L>
QCORE_NUMERIC typename L::M normalise(typename L::F& x) {
  const auto subnormal = L::less(x, L::set(1.17549435e-38f));
  x = L::select(subnormal, L::mul(x, L::set(16777216.0f)), x);
  return subnormal;
}

// x = m * 4^h with m in [1, 4), of a positive normal x.
template <class L>
QCORE_NUMERIC typename L::F split_even_exponent(typename L::F x, typename L::I& h) {
  const auto u = L::bits(x);
  h = L::template shift_right<1>(L::sub(L::template shift_right<23>(u), L::set(127)));
  return L::from_bits(L::sub(u, L::template shift_left<24>(h)));
}

// `invalid` gets the lanes whose result is a NaN.
template <LutReduction kReduction, class L, class T>
QCORE_NUMERIC typename L::F reduce_and_look_up(typename L::F x, const T& table, typename L::M& invalid) {
  using R = LutReduction;
  if constexpr (kReduction == R::exp) {
    // e^x = 2^n * table(f) with x / ln 2 = n + f; the table is of 2^f on [0, 1]. Below 2^-126 the result is 0.
    const auto z = L::at_most(L::at_least(L::mul(x, L::set(kLog2E)), L::set(-127.0f)), L::set(127.0f));
    const auto n = L::floor(z);
    const auto y = look_up<L>(L::sub(z, n), table);
    return L::mul(y, power_of_two<L>(L::add(L::truncate(n), L::set(127))));
  } else if constexpr (kReduction == R::reciprocal) {
    // 1 / (m * 2^e) = table(m) * 2^-e; the table is of 1/m on [1, 2]. Below 2^-126 the result is 0 with x's sign.
    const auto u = L::bits(L::at_least(magnitude_of<L>(x), L::set(7.62939453125e-6f)));  // 2^-17: beyond the limit
    const auto m = L::from_bits(L::bit_or(L::bit_and(u, L::set(static_cast<std::int32_t>(kLutMantissaBits))),
                                          L::set(0x3f800000)));
    const auto scale = power_of_two<L>(L::larger(L::sub(L::set(254), L::template shift_right<23>(u)), L::set(0)));
    return with_sign_of<L>(L::mul(look_up<L>(m, table), scale), x);
  } else if constexpr (kReduction == R::sqrt) {
    // sqrt(m * 4^h) = table(m) * 2^h; the table is of sqrt(m) on [1, 4]. Of -0 it is -0.
    auto a = magnitude_of<L>(x);
    const auto nonzero = L::less(L::set(0.0f), a);
    const auto subnormal = normalise<L>(a);
    typename L::I h;
    const auto m = split_even_exponent<L>(a, h);
    const auto bias = L::select(subnormal, L::set(127 - 12), L::set(127));
    const auto y = L::mul(look_up<L>(m, table), power_of_two<L>(L::larger(L::add(h, bias), L::set(0))));
    invalid = L::either(invalid, L::less(x, L::set(0.0f)));
    return with_sign_of<L>(L::select(nonzero, y, L::set(0.0f)), x);
  } else if constexpr (kReduction == R::rsqrt) {
    // 1 / sqrt(m * 4^h) = table(m) * 2^-h; the table is of 1/sqrt(m) on [1, 4]. Of -0 it is -65504, of infinity 0.
    const auto a = L::at_least(magnitude_of<L>(x), L::set(5.8207660913467407e-11f));  // 2^-34: beyond the limit
    typename L::I h;
    const auto m = split_even_exponent<L>(a, h);
    const auto y = L::mul(look_up<L>(m, table), power_of_two<L>(L::sub(L::set(127), h)));
    invalid = L::either(invalid, L::less(x, L::set(0.0f)));
    return with_sign_of<L>(L::select(L::less(L::set(kFloatMax), a), L::set(0.0f), y), x);
  } else if constexpr (kReduction == R::log) {
    // log(m * 2^e) = e * ln 2 + table(m); the table is of log(m) on [sqrt(1/2), sqrt(2)].
    auto a = x;
    const auto subnormal = normalise<L>(a);
    const auto u = L::bits(a);
    const auto e = L::template shift_right<23>(L::sub(u, L::set(static_cast<std::int32_t>(kRootHalfBits))));
    const auto m = L::from_bits(L::sub(u, L::template shift_left<23>(e)));
    const auto exponent = L::sub(e, L::select(subnormal, L::set(24), L::set(0)));
    const auto y = L::fma(L::to_float(exponent), L::set(kLn2), look_up<L>(m, table));
    invalid = L::either(invalid, L::less(x, L::set(0.0f)));
    const auto finite = L::select(L::less(L::set(kFloatMax), x), L::set(kLutLimit), y);
    return L::select(L::less(L::set(0.0f), x), finite, L::set(-kLutLimit));
  } else if constexpr (kReduction == R::periodic) {
    // f(x - 2 pi k) with k = round(x / 2 pi); the table covers [-pi, pi].
    const auto k = L::round_even(L::mul(x, L::set(kInverseTwoPi)));
    const auto minus_k = L::sub(L::set(0.0f), k);
    const auto r = L::fma(minus_k, L::set(kTwoPi3),
                          L::fma(minus_k, L::set(kTwoPi2), L::fma(minus_k, L::set(kTwoPi1), x)));
    invalid = L::either(invalid, L::is_nan(r));  // of an infinity
    return look_up<L>(r, table);
  } else {
    return look_up<L>(x, table);
  }
}

template <LutReduction kReduction, class L, class T>
QCORE_NUMERIC typename L::F lut_eval(typename L::F x, const T& table) {
  auto invalid = L::is_nan(x);
  auto y = reduce_and_look_up<kReduction, L>(x, table, invalid);
  y = L::at_most(L::at_least(y, L::set(-kLutLimit)), L::set(kLutLimit));
  return L::select(invalid, L::from_bits(L::set(static_cast<std::int32_t>(kNaNBits))), y);
}

// A table in memory and its look-ups on one lane.
struct LutView {
  const float* cuts;           // [intervals + 1]
  const float* scales;         // [intervals]
  const float* lengths;        // [intervals]
  const std::int32_t* firsts;  // [intervals]
  const float* values;         // [entries]
  const float* deltas;         // [entries]
  std::int32_t intervals;

  QCORE_INLINE float low() const { return cuts[0]; }
  QCORE_INLINE float high() const { return cuts[intervals]; }
  QCORE_INLINE std::int32_t interval(float x) const {
    std::int32_t i = 0;
    for (std::int32_t k = 1; k < intervals; ++k) i += x >= cuts[k];
    return i;
  }
  QCORE_INLINE float cut(std::int32_t i) const { return cuts[i]; }
  QCORE_INLINE float scale(std::int32_t i) const { return scales[i]; }
  QCORE_INLINE float length(std::int32_t i) const { return lengths[i]; }
  QCORE_INLINE std::int32_t first(std::int32_t i) const { return firsts[i]; }
  QCORE_INLINE void entry(std::int32_t q, float& value, float& delta) const {
    value = values[q];
    delta = deltas[q];
  }
};

}  // namespace qcore::numerics
