#include "activations/checks.h"

#include "numerics/block_scale.h"
#include "runtime/check.h"

namespace qcore {

void check_activation_scale(const char* op, const char* argument, float scale, ComputeMode mode) {
  if (scale == 0.0f) return;
  QCORE_CHECK_VALUE(mode == ComputeMode::int8, op, ": ", argument, " is given, expected none unless x becomes int8");
  QCORE_CHECK_VALUE(scale > 0.0f && numerics::is_finite(scale) && numerics::is_finite(1.0f / scale), op, ": ", argument,
                    " is ", scale, ", expected a positive finite number with a finite inverse");
}

}  // namespace qcore
