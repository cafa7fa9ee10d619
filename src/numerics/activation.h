#pragma once

#include <math.h>

#include "numerics/elementary.h"

// Functions fused behind an operator, on the fp32 result. NaN passes through every one of them.
namespace qcore::numerics {

QCORE_NUMERIC float clamp_keep_nan(float x, float lo, float hi) {
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}

// The erf form: x * Phi(x).
QCORE_NUMERIC float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f)); }

// The functions that end in a division, numbered like ActivationKind.
constexpr int kQuotientSilu = 2, kQuotientTanh = 4, kQuotientSigmoid = 5, kQuotientGeluTanh = 6;

// Returns x / (1 + e^-x), tanh(x), 1 / (1 + e^-x) or gelu_tanh(x); all but the first have the bits of elementary.h,
// hence the same ones on every device. They are one function with one division, and all but silu share an exponential,
// because the loops of a GPU's epilogue are unrolled: each of them holds this code up to 64 times.
QCORE_NUMERIC float quotient_activation(float x, int function) {
  using L = ScalarLanes;
  const bool is_tanh = function == kQuotientTanh, is_gelu = function == kQuotientGeluTanh;
  float top = x, bottom;
  if (function == kQuotientSilu) {
    bottom = 1.0f + expf(-x);
  } else {
    const float u = is_tanh ? 2.0f * x : is_gelu ? gelu_tanh_exponent<L>(x) : x;
    const float e = exp_of_negative<L>(-magnitude<L>(u));
    const float logistic_top = u < 0.0f ? e : 1.0f;
    top = is_tanh ? 1.0f - e : is_gelu ? x * logistic_top : logistic_top;
    bottom = 1.0f + e;
  }
  const float y = top / bottom;
  if (is_tanh) return magnitude<L>(x) < kTanhNearZero ? tanh_near_zero<L>(x) : with_sign_of<L>(y, x);
  return is_gelu && x < -kGeluTanhBound ? -0.0f : y;
}

}  // namespace qcore::numerics
