#pragma once

#include "numerics/lanes.h"

// Elementary functions of fp32 lanes, each a fixed sequence of rounded operations: ScalarLanes and every vector type
// give the same bits. NaN gives NaN.
namespace qcore::numerics {

// The smallest x whose exponential is a normal number.
constexpr float kLeastExponent = -87.33654f;

// Returns e^x for x <= 0 within 1 ulp, and 0 below kLeastExponent.
//
// 1.5 * 2^23 added to x / log(2) leaves the rounded quotient n in the lowest bits; e^(x - n * log(2)) is a polynomial.
template <class L, class F = typename L::F>
QCORE_NUMERIC F exp_of_negative(F x) {
  const F least = L::set(kLeastExponent);
  const F clamped = L::at_least(least, x);  // in this order a NaN stays
  const F shifted = L::fma(clamped, L::set(1.44269504088896341f), L::set(12582912.0f));
  const F n = L::sub(shifted, L::set(12582912.0f));
  F r = L::fma(n, L::set(-0.693145751953125f), clamped);  // log(2) in two parts, the first one short
  r = L::fma(n, L::set(-1.42860682030941723212e-6f), r);
  F p = L::set(1.9875691500e-4f);
  p = L::fma(p, r, L::set(1.3981999507e-3f));
  p = L::fma(p, r, L::set(8.3334519073e-3f));
  p = L::fma(p, r, L::set(4.1665795894e-2f));
  p = L::fma(p, r, L::set(1.6666665459e-1f));
  p = L::fma(p, r, L::set(5.0000001201e-1f));
  p = L::add(L::fma(p, L::mul(r, r), r), L::set(1.0f));
  const auto power = L::add(L::template shift_left<23>(L::bits(shifted)), L::set(std::int32_t{127 << 23}));
  return L::select(L::less(x, least), L::set(0.0f), L::mul(p, L::from_bits(power)));
}

template <class L, class F = typename L::F>
QCORE_NUMERIC F magnitude(F x) {
  return L::from_bits(L::bit_and(L::bits(x), L::set(std::int32_t{0x7fffffff})));
}

// Returns y >= 0 with the sign of x.
template <class L, class F = typename L::F>
QCORE_NUMERIC F with_sign_of(F y, F x) {
  const auto sign = L::bit_and(L::bits(x), L::set(static_cast<std::int32_t>(0x80000000u)));
  return L::from_bits(L::bit_or(L::bits(y), sign));
}

// Below this magnitude tanh is a polynomial.
constexpr float kTanhNearZero = 0.625f;

template <class L, class F = typename L::F>
QCORE_NUMERIC F tanh_near_zero(F x) {
  const F z = L::mul(x, x);
  F p = L::set(-5.70498872745e-3f);
  p = L::fma(p, z, L::set(2.06390887954e-2f));
  p = L::fma(p, z, L::set(-5.37397155531e-2f));
  p = L::fma(p, z, L::set(1.33314422036e-1f));
  p = L::fma(p, z, L::set(-3.33332819422e-1f));
  return L::fma(L::mul(p, z), x, x);
}

// Returns tanh(x) within 2 ulp.
template <class L, class F = typename L::F>
QCORE_NUMERIC F tanh(F x) {
  const F size = magnitude<L>(x);
  const F e = exp_of_negative<L>(L::mul(size, L::set(-2.0f)));
  const F far = L::div(L::sub(L::set(1.0f), e), L::add(L::set(1.0f), e));
  return L::select(L::less(size, L::set(kTanhNearZero)), tanh_near_zero<L>(x), with_sign_of<L>(far, x));
}

// Returns x / (1 + e^-u): x times the logistic function of u.
template <class L, class F = typename L::F>
QCORE_NUMERIC F times_logistic(F x, F u) {
  const F one = L::set(1.0f);
  const F e = exp_of_negative<L>(L::sub(L::set(0.0f), magnitude<L>(u)));
  const F top = L::select(L::less(u, L::set(0.0f)), e, one);
  return L::div(L::mul(x, top), L::add(one, e));
}

template <class L, class F = typename L::F>
QCORE_NUMERIC F silu_lanes(F x) {
  return times_logistic<L>(x, x);
}

// Returns x * Phi(x), the erf form. The normal distribution's tail Q(a) = e^(-a^2 / 2) * g(a), a = |x|, where g is a
// polynomial in 1 / (1 + 0.35 a) with a relative error of 3.2e-8; the rounding error of a^2 enters the exponential as a
// factor. Then x * Phi(x) is x - x * Q for x >= 0, and x * Q below.
template <class L, class F = typename L::F>
QCORE_NUMERIC F gelu_lanes(F x) {
  const F one = L::set(1.0f), half = L::set(-0.5f);
  const F a = magnitude<L>(x);
  const F t = L::div(one, L::fma(a, L::set(0.35f), one));
  F g = L::set(-0.0291259025f);
  g = L::fma(g, t, L::set(0.14387241f));
  g = L::fma(g, t, L::set(-0.255504912f));
  g = L::fma(g, t, L::set(0.158929669f));
  g = L::fma(g, t, L::set(-0.0229373849f));
  g = L::fma(g, t, L::set(0.105433034f));
  g = L::fma(g, t, L::set(0.119852415f));
  g = L::fma(g, t, L::set(0.139859085f));
  g = L::fma(g, t, L::set(0.13962157f));
  const F bounded = L::at_most(L::set(1e18f), a);  // so that its square is finite; a NaN stays
  const F square = L::mul(bounded, bounded);
  const F rest = L::fma(bounded, bounded, L::sub(L::set(0.0f), square));
  const F e = exp_of_negative<L>(L::mul(square, half));
  const F tail = L::mul(L::mul(e, L::fma(rest, half, one)), L::mul(g, t));
  const F product = L::mul(bounded, tail);
  return L::select(L::less(x, L::set(0.0f)), L::sub(L::set(0.0f), product), L::sub(x, product));
}

// Beyond this magnitude gelu_tanh is x or 0, and a cube could be infinite.
constexpr float kGeluTanhBound = 32.0f;

// Returns u, where gelu_tanh(x) is x times the logistic function of u.
template <class L, class F = typename L::F>
QCORE_NUMERIC F gelu_tanh_exponent(F x) {
  const F bounded = L::at_most(L::set(kGeluTanhBound), L::at_least(L::set(-kGeluTanhBound), x));
  const F slope = L::fma(L::mul(bounded, bounded), L::set(0.0713548162726f), L::set(1.59576912160573f));
  return L::mul(bounded, slope);
}

// Returns x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2.
template <class L, class F = typename L::F>
QCORE_NUMERIC F gelu_tanh_lanes(F x) {
  const F y = times_logistic<L>(x, gelu_tanh_exponent<L>(x));
  return L::select(L::less(x, L::set(-kGeluTanhBound)), L::set(-0.0f), y);
}

template <class L, class F = typename L::F>
QCORE_NUMERIC F relu_lanes(F x) {
  return L::at_least(L::set(0.0f), x);
}

// The activations of a gate, numbered like GateActivation.
constexpr int kGateSilu = 0, kGateGelu = 1, kGateGeluTanh = 2, kGateRelu = 3;

template <class L, int kActivation, class F = typename L::F>
QCORE_NUMERIC F gate(F x) {
  if constexpr (kActivation == kGateSilu) return silu_lanes<L>(x);
  if constexpr (kActivation == kGateGelu) return gelu_lanes<L>(x);
  if constexpr (kActivation == kGateGeluTanh) return gelu_tanh_lanes<L>(x);
  if constexpr (kActivation == kGateRelu) return relu_lanes<L>(x);
}

}  // namespace qcore::numerics
