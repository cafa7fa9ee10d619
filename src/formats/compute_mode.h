#pragma once

#include "numerics/activation_block.h"
#include "qcore/quantize.h"

namespace qcore {

// Returns the number by which numerics/activation_block.h knows a mode with integer activations; `fixed` if their scale
// is given.
inline int activation_mode(ComputeMode compute, bool fixed = false) {
  return fixed ? numerics::kActivationInt8Fixed : static_cast<int>(compute) - static_cast<int>(ComputeMode::int8);
}

}  // namespace qcore
