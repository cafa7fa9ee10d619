#pragma once

#include "numerics/lanes.h"

// Piecewise-linear look-up tables. Cut points c_0 < ... < c_n bound n intervals; interval i has len_i equal segments
// (the first and the last have 1), whose ends are entries of the table:
//   x = clamp(x, c_0, c_n);  i = last i with c_i <= x;  p = min((x - c_i) * s_i, len_i), s_i = len_i / (c_i+1 - c_i)
//   j = floor(p);  y = t[first_i + j] + (p - j) * delta[first_i + j],  one fma;  delta[q] = t[q+1] - t[q]
// At c_n, i = n with s_n = len_n = 0: y is the last entry, whose delta is 0. Every operation is rounded to fp32 once.
// Results are clamped to +-65504, and a NaN gives the NaN 0x7fc00000.
//
// `L` has the operations on lanes (lanes.h), `T` a table's look-ups on lanes of indices:
//   F low(), high()           c_0 and c_n
//   I interval(F x)           i
//   F position(F x, I i)      p
//   void place(F p, I i, I& q, F& a)     q = first_i + j, a = p - j
//   void entry(I q, F& value, F& delta)  t[q], delta[q]
namespace qcore::numerics {

// Says which identity reduces an argument, so that the table covers one binade (or one period) only: see reduced() and
// restored().
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

// Returns the power of two of an exponent with a bias of 127; 0 gives 0.
template <class L>
QCORE_NUMERIC typename L::F power_of_two(typename L::I biased_exponent) {
  return L::from_bits(L::template shift_left<23>(biased_exponent));
}

template <class L>
QCORE_NUMERIC typename L::F with_sign_of(typename L::F magnitude, typename L::F x) {
  return L::from_bits(
      L::bit_or(L::bits(magnitude), L::bit_and(L::bits(x), L::set(static_cast<std::int32_t>(0x80000000u)))));
}

template <class L>
QCORE_NUMERIC typename L::F magnitude_of(typename L::F x) {
  return L::from_bits(L::bit_and(L::bits(x), L::set(0x7fffffff)));
}

// Multiplies subnormal numbers by 2^24, so that their exponent can be read.
template <class L>
QCORE_NUMERIC typename L::M normalize(typename L::F& x) {
  const auto subnormal = L::less(x, L::set(1.17549435e-38f));
  x = L::select(subnormal, L::mul(x, L::set(16777216.0f)), x);
  return subnormal;
}

// x / ln 2 for e^x, within the exponents of fp32.
template <class L>
QCORE_NUMERIC typename L::F binary_exponent(typename L::F x) {
  return L::at_most(L::at_least(L::mul(x, L::set(kLog2E)), L::set(-127.0f)), L::set(127.0f));
}

// |x|, at least 2^-17, whose reciprocal is beyond the limit.
template <class L>
QCORE_NUMERIC typename L::F reciprocal_magnitude(typename L::F x) {
  return L::at_least(magnitude_of<L>(x), L::set(7.62939453125e-6f));
}

// |x|; of rsqrt at least 2^-34, whose result is beyond the limit.
template <LutReduction kReduction, class L>
QCORE_NUMERIC typename L::F root_magnitude(typename L::F x) {
  const auto a = magnitude_of<L>(x);
  return kReduction == LutReduction::rsqrt ? L::at_least(a, L::set(5.8207660913467407e-11f)) : a;
}

// e of a positive normal x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
template <class L>
QCORE_NUMERIC typename L::I log_exponent(typename L::F x) {
  return L::template shift_right<23>(L::sub(L::bits(x), L::set(static_cast<std::int32_t>(kRootHalfBits))));
}

// x = m * 4^h with m in [1, 4), of a positive normal x.
template <class L>
QCORE_NUMERIC typename L::F split_even_exponent(typename L::F x, typename L::I& h) {
  const auto u = L::bits(x);
  h = L::template shift_right<1>(L::sub(L::template shift_right<23>(u), L::set(127)));
  return L::from_bits(L::sub(u, L::template shift_left<24>(h)));
}

// Returns the argument of the table.
template <LutReduction kReduction, class L>
QCORE_NUMERIC typename L::F reduced(typename L::F x) {
  using R = LutReduction;
  if constexpr (kReduction == R::exp) {
    // e^x = 2^n * table(f) with x / ln 2 = n + f; the table is of 2^f on [0, 1].
    const auto z = binary_exponent<L>(x);
    return L::sub(z, L::floor(z));
  } else if constexpr (kReduction == R::reciprocal) {
    // 1 / (m * 2^e) = table(m) * 2^-e; the table is of 1/m on [1, 2].
    const auto u = L::bits(reciprocal_magnitude<L>(x));
    return L::from_bits(
        L::bit_or(L::bit_and(u, L::set(static_cast<std::int32_t>(kLutMantissaBits))), L::set(0x3f800000)));
  } else if constexpr (kReduction == R::sqrt || kReduction == R::rsqrt) {
    // sqrt(m * 4^h) = table(m) * 2^h, its reciprocal table(m) * 2^-h; the tables are of sqrt(m), 1/sqrt(m) on [1, 4].
    auto a = root_magnitude<kReduction, L>(x);
    normalize<L>(a);
    typename L::I h;
    return split_even_exponent<L>(a, h);
  } else if constexpr (kReduction == R::log) {
    // log(m * 2^e) = e * ln 2 + table(m); the table is of log(m) on [sqrt(1/2), sqrt(2)].
    normalize<L>(x);
    return L::from_bits(L::sub(L::bits(x), L::template shift_left<23>(log_exponent<L>(x))));
  } else if constexpr (kReduction == R::periodic) {
    // f(x - 2 pi k) with k = round(x / 2 pi); the table covers [-pi, pi] and a little more, since an
    // fp32 quotient may be one off at the ends of a period.
    const auto minus_k = L::sub(L::set(0.0f), L::round_even(L::mul(x, L::set(kInverseTwoPi))));
    return L::fma(minus_k, L::set(kTwoPi3), L::fma(minus_k, L::set(kTwoPi2), L::fma(minus_k, L::set(kTwoPi1), x)));
  } else {
    return x;
  }
}

// The function of x, with y from the table; `invalid` gets the lanes whose result is a NaN.
template <LutReduction kReduction, class L>
QCORE_NUMERIC typename L::F restored(typename L::F x, typename L::F y, typename L::M& invalid) {
  using R = LutReduction;
  if constexpr (kReduction == R::exp) {
    // Below 2^-126 the result is 0.
    return L::mul(y, power_of_two<L>(L::add(L::truncate(L::floor(binary_exponent<L>(x))), L::set(127))));
  } else if constexpr (kReduction == R::reciprocal) {
    // Below 2^-126 the result is 0 with x's sign.
    const auto exponent = L::template shift_right<23>(L::bits(reciprocal_magnitude<L>(x)));
    return with_sign_of<L>(L::mul(y, power_of_two<L>(L::larger(L::sub(L::set(254), exponent), L::set(0)))), x);
  } else if constexpr (kReduction == R::sqrt) {
    // The root of -0 is -0.
    auto a = root_magnitude<kReduction, L>(x);
    const auto nonzero = L::less(L::set(0.0f), a);
    const auto bias = L::select(normalize<L>(a), L::set(127 - 12), L::set(127));
    typename L::I h;
    split_even_exponent<L>(a, h);
    invalid = L::either(invalid, L::less(x, L::set(0.0f)));
    const auto root = L::mul(y, power_of_two<L>(L::larger(L::add(h, bias), L::set(0))));
    return with_sign_of<L>(L::select(nonzero, root, L::set(0.0f)), x);
  } else if constexpr (kReduction == R::rsqrt) {
    // The result is -65504 for -0 and 0 for infinity.
    const auto a = root_magnitude<kReduction, L>(x);
    typename L::I h;
    split_even_exponent<L>(a, h);
    invalid = L::either(invalid, L::less(x, L::set(0.0f)));
    const auto root = L::mul(y, power_of_two<L>(L::sub(L::set(127), h)));
    return with_sign_of<L>(L::select(L::less(L::set(kFloatMax), a), L::set(0.0f), root), x);
  } else if constexpr (kReduction == R::log) {
    auto a = x;
    const auto shifted = L::select(normalize<L>(a), L::set(24), L::set(0));
    const auto exponent = L::to_float(L::sub(log_exponent<L>(a), shifted));
    invalid = L::either(invalid, L::less(x, L::set(0.0f)));
    const auto finite = L::fma(exponent, L::set(kLn2), y);
    const auto positive = L::select(L::less(L::set(kFloatMax), x), L::set(kLutLimit), finite);
    return L::select(L::less(L::set(0.0f), x), positive, L::set(-kLutLimit));
  } else if constexpr (kReduction == R::periodic) {
    invalid = L::either(invalid, L::less(L::set(kFloatMax), magnitude_of<L>(x)));
    return y;
  } else {
    return y;
  }
}

// Results of entries lie between them already, so that without a reduction nothing is left to be limited.
template <LutReduction kReduction, class L>
QCORE_NUMERIC typename L::F within_limit(typename L::F y) {
  return kReduction == LutReduction::none ? y : L::limited(y, L::set(kLutLimit));
}

template <class L>
QCORE_NUMERIC typename L::F nan_where(typename L::M invalid, typename L::F y) {
  return L::select(invalid, L::from_bits(L::set(static_cast<std::int32_t>(kNaNBits))), y);
}

template <LutReduction kReduction, class L, class T>
QCORE_NUMERIC typename L::F lut_eval(typename L::F x, const T& table) {
  const auto inside = L::at_most(L::at_least(reduced<kReduction, L>(x), table.low()), table.high());
  const auto i = table.interval(inside);
  typename L::I q;
  typename L::F a, value, delta;
  table.place(table.position(inside, i), i, q, a);
  table.entry(q, value, delta);
  auto invalid = L::is_nan(x);
  const auto y = restored<kReduction, L>(x, L::fma(a, delta, value), invalid);
  return nan_where<L>(invalid, within_limit<kReduction, L>(y));
}

// lut_eval in steps, for vectors: each is short enough that a processor overlaps several of them. An entry's index has
// 16 bits, above which lut_place of exp keeps the power of two that lut_interpolate multiplies by. Of `T` they call
//   I first_interval(F x)       an interval at or before i
//   find_binary(F z)            lut_found_binary
//   I interval_from(F x, I i)   i, from that one on
//   F entries()                 an object with pack<whether q has a power>(I q), find(packed) and values(found, F&
//   value, F& delta)
constexpr std::int32_t kLutIndexBits = 0xffff, kLutPowerBits = 0x7f800000;

template <class L>
struct LutFound {
  typename L::F inside;
  typename L::I i, power;  // power: kLutPowerBits, any bits below them, but zeros in kLutIndexBits
};

template <class L, class T>
QCORE_NUMERIC LutFound<L> lut_found(typename L::F argument, const T& table) {
  LutFound<L> found;
  found.inside = L::at_most(L::at_least(argument, table.low()), table.high());
  found.i = table.first_interval(found.inside);
  return found;
}

// Returns what is found for the fraction of z = x / ln 2, and the power of two of its integer n. n + 127 has 8 bits,
// which are the lowest ones of its sum with 2^23.
template <class L, class T>
QCORE_NUMERIC LutFound<L> lut_found_binary(typename L::F z, const T& table) {
  const auto n = L::floor(z);
  auto found = lut_found<L>(L::sub(z, n), table);
  found.power = L::template shift_left<23>(L::bits(L::add(n, L::set(8388608.0f + 127.0f))));
  return found;
}

// Returns the argument of lut_find: the table's or, for exp, z.
template <LutReduction kReduction, class L>
QCORE_NUMERIC typename L::F lut_argument(typename L::F x) {
  if constexpr (kReduction == LutReduction::exp)
    return L::limited(L::mul(x, L::set(kLog2E)), L::set(127.0f));
  else
    return reduced<kReduction, L>(x);
}

template <LutReduction kReduction, class L, class T>
QCORE_NUMERIC LutFound<L> lut_find(typename L::F argument, const T& table) {
  if constexpr (kReduction == LutReduction::exp)
    return table.find_binary(argument);
  else
    return lut_found<L>(argument, table);
}

// Tables whose first step finds the interval, and whose entries are looked up in one step.
template <class L, class T>
struct LutOneStep {
  struct Entry {
    typename L::F value, delta;
  };
  QCORE_INLINE typename L::I first_interval(typename L::F x) const { return table().interval(x); }
  QCORE_INLINE typename L::I interval_from(typename L::F, typename L::I i) const { return i; }
  QCORE_INLINE LutFound<L> find_binary(typename L::F z) const { return lut_found_binary<L>(z, table()); }
  QCORE_INLINE const T& entries() const { return table(); }
  template <bool kPower>
  QCORE_NUMERIC typename L::I pack(typename L::I q) {
    return kPower ? L::bit_and(q, L::set(kLutIndexBits)) : q;
  }
  QCORE_INLINE Entry find(typename L::I q) const {
    Entry found;
    table().entry(q, found.value, found.delta);
    return found;
  }
  QCORE_NUMERIC void values(const Entry& found, typename L::F& value, typename L::F& delta) {
    value = found.value;
    delta = found.delta;
  }

 private:
  QCORE_INLINE const T& table() const { return static_cast<const T&>(*this); }
};

template <LutReduction kReduction, class L, class T>
QCORE_NUMERIC void lut_place(const LutFound<L>& found, const T& table, typename L::I& q, typename L::F& a) {
  table.place(table.position(found.inside, found.i), found.i, q, a);
  if constexpr (kReduction == LutReduction::exp) q = L::join(q, L::set(kLutIndexBits), found.power);
}

// Takes x for the sign, exponent and validity that the table's argument lacks. kNaNs says that x may be a NaN, kLimited
// that the result may be beyond the limit.
template <LutReduction kReduction, class L, bool kNaNs, bool kLimited, class Entries, class Entry>
QCORE_NUMERIC typename L::F lut_interpolate(typename L::F x, typename L::I q, typename L::F a, const Entries& entries,
                                            const Entry& entry) {
  constexpr bool kExp = kReduction == LutReduction::exp;
  typename L::F value, delta;
  entries.values(entry, value, delta);
  auto y = L::fma(a, delta, value);
  auto invalid = L::is_nan(x);
  if constexpr (kExp)
    y = L::mul(y, L::from_bits(L::bit_and(q, L::set(kLutPowerBits))));
  else
    y = restored<kReduction, L>(x, y, invalid);
  if constexpr (kLimited) y = within_limit<kReduction, L>(y);
  constexpr bool kAlwaysValid = kExp || kReduction == LutReduction::none || kReduction == LutReduction::reciprocal;
  return kNaNs || !kAlwaysValid ? nan_where<L>(invalid, y) : y;
}

// A table in memory and its look-ups on one lane.
struct LutView {
  const float* cuts;    // [intervals + 1]
  const float* scales;  // [intervals + 1], as the next two; the last are 0, 0 and the last entry
  const float* lengths;
  const std::int32_t* firsts;
  const float* values;  // [entries]
  const float* deltas;  // [entries]
  std::int32_t intervals;

  QCORE_INLINE float low() const { return cuts[0]; }
  QCORE_INLINE float high() const { return cuts[intervals]; }
  QCORE_INLINE std::int32_t interval(float x) const {
    std::int32_t i = 0;
    for (std::int32_t k = 1; k <= intervals; ++k) i += x >= cuts[k];
    return i;
  }
  QCORE_INLINE float position(float x, std::int32_t i) const {
    return ScalarLanes::at_most((x - cuts[i]) * scales[i], lengths[i]);
  }
  QCORE_INLINE void place(float p, std::int32_t i, std::int32_t& q, float& a) const {
    const auto j = static_cast<std::int32_t>(p);
    q = firsts[i] + j;
    a = p - static_cast<float>(j);
  }
  QCORE_INLINE void entry(std::int32_t q, float& value, float& delta) const {
    value = values[q];
    delta = deltas[q];
  }
};

}  // namespace qcore::numerics
