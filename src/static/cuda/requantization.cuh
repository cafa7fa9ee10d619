#pragma once

#include "static/cuda/sm75_int8_implicit_gemm/launch.cuh"
#include "static/problem.h"

namespace qcore {

inline static_gemm::Requantization requantization(const StaticLayer& layer) {
  const StaticOptions& options = layer.options;
  return {layer.acc_init, layer.multipliers, static_cast<float>(options.lo - options.y.zero_point),
          static_cast<float>(options.hi - options.y.zero_point), options.y.zero_point};
}

}  // namespace qcore
