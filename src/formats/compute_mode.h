#pragma once

#include "qcore/quantize.h"

namespace qcore {

// Returns the number by which numerics/activation_block.h knows a mode with integer activations.
inline int activation_mode(ComputeMode compute) {
  return static_cast<int>(compute) - static_cast<int>(ComputeMode::int8);
}

}  // namespace qcore
