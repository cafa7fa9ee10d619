#pragma once

#include <cstdint>

#include "gemm/product.h"

// One validated call of linear, as every kernel sees it.
namespace qcore {

struct LinearProblem {
  std::int64_t m = 0;
  RowView x;                             // [M, K]
  RowView y;                             // [M, N]; written to through const_cast
  const PackedWeight* weight = nullptr;  // n, k, block_size, blocks
  TensorView bias;                       // [N], rank 0 if there is none
  ComputeMode compute = ComputeMode::int8;
  FusedActivation activation;
  ActivationScales scales;  // of x
  Device device;
  void* stream = nullptr;

  // Returns the call as the CPU kernels see it: the rows are the pixels of a row of one image, under a 1x1 window.
  BlockProduct product() const {
    return {1, 1, {}, {m, 1, 1, 1, 0, m}, x, y, weight, bias, compute, activation, scales};
  }
};

}  // namespace qcore
