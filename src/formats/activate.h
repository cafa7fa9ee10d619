#pragma once

#include "numerics/activation.h"
#include "qcore/linear.h"

namespace qcore {

static_assert(static_cast<int>(ActivationKind::silu) == numerics::kQuotientSilu);
static_assert(static_cast<int>(ActivationKind::tanh) == numerics::kQuotientTanh);
static_assert(static_cast<int>(ActivationKind::sigmoid) == numerics::kQuotientSigmoid);
static_assert(static_cast<int>(ActivationKind::gelu_tanh) == numerics::kQuotientGeluTanh);

// Applies an operator's fused activation to its fp32 result.
QCORE_NUMERIC float activate(float y, const FusedActivation& activation) {
  switch (activation.kind) {
    case ActivationKind::clamp:
      return numerics::clamp_keep_nan(y, activation.lo, activation.hi);
    case ActivationKind::gelu:
      return numerics::gelu(y);
    case ActivationKind::silu:
    case ActivationKind::tanh:
    case ActivationKind::sigmoid:
    case ActivationKind::gelu_tanh:
      return numerics::quotient_activation(y, static_cast<int>(activation.kind));
    case ActivationKind::none:
      break;
  }
  return y;
}

}  // namespace qcore
