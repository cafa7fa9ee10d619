#pragma once

#include "conv2d/problem.h"
#include "formats/activate.h"
#include "formats/element.h"

namespace qcore {

// Bias, activation and rounding of one fp32 result, `at` elements from y's data.
inline void store_result(const Conv2dProblem& problem, std::int64_t at, std::int64_t channel, float y) {
  if (problem.bias.rank) y += load_float(problem.bias.data, problem.bias.dtype, channel * problem.bias.strides[0]);
  store_float(const_cast<void*>(problem.y.data), problem.y.dtype, at, activate(y, problem.activation));
}

}  // namespace qcore
