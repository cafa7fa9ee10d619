#pragma once

#include "linear/problem.h"

// One validated call of grouped_linear, as every kernel sees it.
namespace qcore {

struct GroupedLinearProblem : LinearProblem {  // the weight's rows are those of all experts; bias is [E, N] or rank 0
  std::int64_t experts = 0;
  TensorView row_counts;                      // [E], int32 or int64, on the device
  const std::int64_t* expert_ends = nullptr;  // [E], where the rows of each expert end; on the CPU only

  std::int64_t outputs() const { return weight->layout.n / experts; }  // N

  BlockProduct product() const {
    BlockProduct product = LinearProblem::product();
    product.experts = experts;
    product.expert_ends = expert_ends;
    return product;
  }
};

}  // namespace qcore
