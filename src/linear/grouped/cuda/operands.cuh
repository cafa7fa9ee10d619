#pragma once

#include "gemm/cuda/expert_tiles.cuh"
#include "linear/grouped/problem.h"

// What kernels are told about the experts of a problem, and about its output.
namespace qcore {

inline ExpertCounts expert_counts(const GroupedLinearProblem& problem) {
  const TensorView& counts = problem.row_counts;
  return {counts.data,       counts.dtype == DType::i64,
          counts.strides[0], static_cast<int>(problem.experts),
          problem.outputs(), problem.bias.rank ? problem.bias.strides[0] : 0};
}

// The bias is that of expert 0.
inline DeviceOutput expert_output(const GroupedLinearProblem& problem) {
  DeviceOutput out = device_output(problem);
  if (problem.bias.rank) out.bias_stride = problem.bias.strides[1];
  return out;
}

// Null if the experts fit in a grid.
inline const char* experts_unsupported_reason(const GroupedLinearProblem& problem) {
  return problem.experts > kMaxExperts ? "it takes up to 16384 experts" : nullptr;
}

}  // namespace qcore
