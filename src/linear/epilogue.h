#pragma once

#include "formats/activate.h"
#include "formats/element.h"
#include "linear/problem.h"

namespace qcore {

// Bias, activation and rounding of one fp32 result, the same for every CPU kernel.
inline void store_output(const LinearProblem& problem, std::int64_t m, std::int64_t n, float y) {
  if (problem.bias.rank) y += load_float(problem.bias.data, problem.bias.dtype, n * problem.bias.strides[0]);
  store_float(const_cast<void*>(problem.y.data), problem.y.dtype, problem.y.row_offset(m) + n * problem.y.column_stride,
              activate(y, problem.activation));
}

}  // namespace qcore
