#pragma once

#include "static/problem.h"
#include "static/static_gemm.cuh"

namespace qcore {

inline static_gemm::Requantisation requantisation(const StaticLayer& layer) {
  const StaticOptions& options = layer.options;
  return {layer.starts, layer.multipliers, static_cast<float>(options.lo - options.y.zero_point),
          static_cast<float>(options.hi - options.y.zero_point), options.y.zero_point};
}

}  // namespace qcore
