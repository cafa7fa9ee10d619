#pragma once

#include <math.h>

#include "numerics/portable.h"

// RMSNorm of a row in fp32: y_i = (x_i * factor) * w_i. The squares are summed by fma in kNormSums partial sums, of the
// elements i with i mod kNormSums = 0, 1, ..., added by halves.
namespace qcore::numerics {

constexpr int kNormSums = 32;

QCORE_NUMERIC float norm_factor(float sum_of_squares, std::int64_t count, float eps) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(count) + eps);
}

}  // namespace qcore::numerics
