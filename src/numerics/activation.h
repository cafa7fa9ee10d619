#pragma once

#include <math.h>

#include "numerics/portable.h"

// Functions fused behind an operator, on the fp32 result. NaN passes through every one of them.
namespace qcore::numerics {

QCORE_NUMERIC float clamp_keep_nan(float x, float lo, float hi) {
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}

QCORE_NUMERIC float silu(float x) { return x / (1.0f + expf(-x)); }

// The erf form: x * Phi(x).
QCORE_NUMERIC float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f)); }

}  // namespace qcore::numerics
