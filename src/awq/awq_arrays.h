#pragma once

#include "awq/problem.h"
#include "formats/element.h"
#include "numerics/awq.h"

// Elements of the arrays of a problem, at any strides.
namespace qcore {

// u, z and s of one weight.
QCORE_NUMERIC int awq_code(const AwqWeight& weight, std::int64_t k, std::int64_t n) {
  return numerics::awq_nibble(
      weight.qweight[k * weight.qweight_row + n / numerics::kAwqColumns * weight.qweight_column],
      static_cast<int>(n % numerics::kAwqColumns));
}
QCORE_NUMERIC int awq_zero(const AwqWeight& weight, std::int64_t p, std::int64_t n) {
  return numerics::awq_nibble(weight.qzeros[p * weight.qzeros_row + n / numerics::kAwqColumns * weight.qzeros_column],
                              static_cast<int>(n % numerics::kAwqColumns));
}
QCORE_NUMERIC std::uint16_t awq_scale(const AwqWeight& weight, std::int64_t p, std::int64_t n) {
  return weight.scales[p * weight.scales_row + n * weight.scales_column];
}

// Returns the offset of the first element of a row, with the leading axes flattened.
inline std::int64_t row_offset(const TensorView& view, std::int64_t row) {
  std::int64_t offset = 0;
  for (int axis = view.rank - 2; axis >= 0; --axis) {
    offset += row % view.shape[axis] * view.strides[axis];
    row /= view.shape[axis];
  }
  return offset;
}

// x [..., K] as fp32 [M, K].
inline void load_rows(const TensorView& x, std::int64_t k, float* rows) {
  for (std::int64_t row = 0; row < x.size() / k; ++row) {
    const std::int64_t first = row_offset(x, row);
    for (std::int64_t i = 0; i < k; ++i)
      rows[row * k + i] = load_float(x.data, x.dtype, first + i * x.strides[x.rank - 1]);
  }
}

// y[m][n] = sum + bias[n].
inline void store_result(const AwqLinearProblem& problem, std::int64_t m, std::int64_t n, float sum) {
  if (problem.bias.rank) sum += load_float(problem.bias.data, problem.bias.dtype, n * problem.bias.strides[0]);
  const TensorView& y = problem.y;
  store_float(y.data, y.dtype, row_offset(y, m) + n * y.strides[y.rank - 1], sum);
}

}  // namespace qcore
