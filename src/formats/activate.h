#pragma once

#include "numerics/activation.h"
#include "qcore/linear.h"

namespace qcore {

// Applies an operator's fused activation to its fp32 result.
QCORE_NUMERIC float activate(float y, const FusedActivation& activation) {
  switch (activation.kind) {
    case ActivationKind::clamp:
      return numerics::clamp_keep_nan(y, activation.lo, activation.hi);
    case ActivationKind::silu:
      return numerics::silu(y);
    case ActivationKind::gelu:
      return numerics::gelu(y);
    case ActivationKind::none:
      break;
  }
  return y;
}

}  // namespace qcore
