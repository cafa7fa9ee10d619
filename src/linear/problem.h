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
  // The weight's codes of 4 bits stand for 0 to 15, not for -8 to 7. Only a CUDA kernel that asked for it is given
  // such.
  bool counts_from_zero = false;
  // The weight is written by kernels right in front of this call's in the stream, which let one that overlaps start.
  bool follows_expansion = false;
  TensorView bias;  // [N], rank 0 if there is none
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
