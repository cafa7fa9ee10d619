#pragma once

#include <cstdint>

#include "qcore/tensor_view.h"

namespace qcore {

// A validated weight in AWQ's layout, as kernels see it. Strides are in elements.
struct AwqWeight {
  std::int64_t k = 0, n = 0, group_size = 1;
  const std::uint32_t* qweight = nullptr;  // [K, N/8]
  const std::uint16_t* scales = nullptr;   // fp16 [P, N]
  const std::uint32_t* qzeros = nullptr;   // [P, N/8]
  std::int64_t qweight_row = 0, qweight_column = 1;
  std::int64_t scales_row = 0, scales_column = 1;
  std::int64_t qzeros_row = 0, qzeros_column = 1;
  Device device;
  void* stream = nullptr;

  std::int64_t groups() const { return k / group_size; }  // P
  // Each row is one piece of memory.
  bool has_whole_rows() const { return qweight_column == 1 && scales_column == 1 && qzeros_column == 1; }
};

// out [K, N] fp16; the transpose is another pair of strides.
struct AwqProblem {
  AwqWeight weight;
  std::uint16_t* out = nullptr;
  std::int64_t out_k = 0, out_n = 1;  // strides of out along K and N
  Device device;
};

// y = x @ W + bias for few rows.
struct AwqLinearProblem {
  AwqWeight weight;
  std::int64_t m = 0;
  TensorView x, y;  // [..., K], [..., N]
  TensorView bias;  // [N], rank 0 if there is none
  Device device;
};

// From this number of rows on, linear packs the weight first.
constexpr std::int64_t kAwqFewRows = 13;

}  // namespace qcore
