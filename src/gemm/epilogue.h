#pragma once

#include "formats/activate.h"
#include "formats/element.h"
#include "qcore/linear.h"

namespace qcore {

// Applies bias and activation to one fp32 result of linear or conv2d and stores it `at` elements from y's data, rounded
// once: the definition for every CPU kernel.
template <class Problem>
void store_result(const Problem& problem, std::int64_t at, std::int64_t channel, float y) {
  if (problem.bias.rank) y += load_float(problem.bias.data, problem.bias.dtype, channel * problem.bias.strides[0]);
  store_float(const_cast<void*>(problem.y.data), problem.y.dtype, at, activate(y, problem.activation));
}

}  // namespace qcore
