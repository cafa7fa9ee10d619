#pragma once

#include "formats/element.h"
#include "linear/problem.h"
#include "numerics/activation.h"

namespace qcore {

QCORE_NUMERIC float activate(float y, const Activation& activation) {
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

// Bias, activation and rounding of one fp32 result, the same for every CPU kernel.
inline void store_output(const LinearProblem& problem, std::int64_t m, std::int64_t n, float y) {
  if (problem.bias.rank) y += load_float(problem.bias.data, problem.bias.dtype, n * problem.bias.strides[0]);
  store_float(const_cast<void*>(problem.y.data), problem.y.dtype, problem.y.row_offset(m) + n * problem.y.column_stride,
              activate(y, problem.activation));
}

}  // namespace qcore
