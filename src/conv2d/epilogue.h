#pragma once

#include "conv2d/problem.h"
#include "formats/activate.h"
#include "formats/element.h"

namespace qcore {

// Bias, activation and rounding of one fp32 result.
inline void store_result(const Conv2dProblem& problem, std::int64_t n, std::int64_t channel, std::int64_t i,
                         std::int64_t j, float y) {
  if (problem.bias.rank) y += load_float(problem.bias.data, problem.bias.dtype, channel * problem.bias.strides[0]);
  store_float(const_cast<void*>(problem.y.data), problem.y.dtype, problem.y.offset(n, channel, i, j),
              activate(y, problem.activation));
}

}  // namespace qcore
