#pragma once

#include "qcore/quantize.h"

namespace qcore {

// Throws ValueError for a given scale that x cannot have; 0 is none.
void check_activation_scale(const char* op, const char* argument, float scale, ComputeMode mode);

}  // namespace qcore
