#pragma once

#include <cstdint>

#include "numerics/portable.h"

// The definition of the transform: which numbers are added in which order, each sum rounded once to fp32.
namespace qcore {

// 1 / sqrt(block) for a power of two, rounded once.
QCORE_NUMERIC float hadamard_scale(std::int64_t block) {
  float scale = 1.0f;
  for (; block >= 4; block /= 4) scale *= 0.5f;
  return block == 2 ? scale * 0.70710678118654752440f : scale;
}

// Transforms `block` values in place, without the factor: in stage h = 1, 2, 4, ... the elements i and i + h become
// their sum and their difference.
QCORE_NUMERIC void hadamard_stages(float* values, std::int64_t block) {
  for (std::int64_t h = 1; h < block; h *= 2)
    for (std::int64_t begin = 0; begin < block; begin += 2 * h)
      for (std::int64_t i = begin; i < begin + h; ++i) {
        const float a = values[i], b = values[i + h];
        values[i] = a + b;
        values[i + h] = a - b;
      }
}

}  // namespace qcore
