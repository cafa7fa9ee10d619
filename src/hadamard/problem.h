#pragma once

#include "formats/row_view.h"
#include "qcore/tensor_view.h"

namespace qcore {

// Checked arguments of hadamard(): rows [count, k], k a multiple of block, a power of two.
struct HadamardProblem {
  RowView x, y;
  std::int64_t count, k, block;
  Device device = kCpu;
};

}  // namespace qcore
