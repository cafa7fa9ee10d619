#pragma once

#include <cstdint>

#include "formats/packed_weight.h"
#include "formats/row_view.h"
#include "qcore/linear.h"

// One validated call of linear, as every kernel sees it.
namespace qcore {

struct LinearProblem {
  std::int64_t m = 0;
  RowView x;                             // [M, K]
  RowView y;                             // [M, N]; written to through const_cast in one place, store_rows()
  const PackedWeight* weight = nullptr;  // n, k, block_size, blocks
  TensorView bias;                       // [N], rank 0 if there is none
  ComputeMode compute = ComputeMode::int8;
  FusedActivation activation;
  Device device;
  void* stream = nullptr;
};

}  // namespace qcore
