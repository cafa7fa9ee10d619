#pragma once

#include <algorithm>
#include <cstdint>

#include "conv2d/kernels_cuda.h"
#include "cuda/quantize_activations.cuh"
#include "cuda/window.cuh"

// Images as rows of channels, which is how quantisation and products take them.
namespace qcore {

// Row (pixel * groups + group): the group's channels of a pixel of x.
inline RowView pixel_rows(const Conv2dProblem& problem) {
  const ImageView& x = problem.x;
  RowView rows;
  rows.data = x.data;
  rows.dtype = x.dtype;
  rows.leading = 4;
  const std::int64_t k = problem.weight->layout.k;
  const std::int64_t shape[] = {problem.batch, problem.rows.input, problem.columns.input, problem.groups};
  const std::int64_t strides[] = {x.image, x.row, x.column, k * x.channel};
  std::copy(shape, shape + 4, rows.shape);
  std::copy(strides, strides + 4, rows.strides);
  rows.column_stride = x.channel;
  // An axis of one group is left out: what is left may be rows that lie evenly.
  if (problem.groups == 1) rows.leading = 3;
  return rows;
}

// The pixels of y, all channels.
inline RowView result_rows(const Conv2dProblem& problem) {
  const ImageView& y = problem.y;
  RowView rows;
  rows.data = y.data;
  rows.dtype = y.dtype;
  rows.leading = 3;
  const std::int64_t shape[] = {problem.batch, problem.rows.output, problem.columns.output};
  const std::int64_t strides[] = {y.image, y.row, y.column};
  std::copy(shape, shape + 3, rows.shape);
  std::copy(strides, strides + 3, rows.strides);
  rows.column_stride = y.channel;
  return rows;
}

inline std::int64_t rows_per_image(const Conv2dProblem& problem) {
  return problem.rows.input * problem.columns.input * problem.groups;
}

// How many images' codes fit into the bound, `row_codes` in each row.
inline std::int64_t images_at_once(const Conv2dProblem& problem, std::int64_t row_codes, std::int64_t bound) {
  const std::int64_t image = std::max<std::int64_t>(rows_per_image(problem) * std::max<std::int64_t>(row_codes, 1), 1);
  return std::min(std::max<std::int64_t>(bound / image, 1), problem.batch);
}

// x's pixels in int8, terms included; `first_row` as in quantize_activations().
void quantize_pixels(const Conv2dProblem& problem, std::int64_t first_row, const QuantizedRows<std::int8_t>& out,
                     cudaStream_t stream);

}  // namespace qcore
