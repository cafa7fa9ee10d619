#pragma once

#include <algorithm>
#include <cstdint>

#include "conv2d/cuda/kernels.h"
#include "gemm/cuda/quantize_activations.cuh"
#include "gemm/cuda/window/window.cuh"

// Images as rows of channels, which is how quantization and products take them.
namespace qcore {

// Row (pixel * groups + group): the group's channels of a pixel of x.
inline RowView pixel_rows(const Conv2dProblem& problem) {
  const ImageView& x = problem.x;
  RowView rows;
  rows.data = x.data;
  rows.dtype = x.dtype;
  rows.append(problem.batch, x.image);
  rows.append(problem.rows.input, x.row);
  rows.append(problem.columns.input, x.column);
  rows.append(problem.groups, problem.weight->layout.k * x.channel);
  rows.column_stride = x.channel;
  return rows;
}

// The pixels of y, all channels.
inline RowView result_rows(const Conv2dProblem& problem) {
  const ImageView& y = problem.y;
  RowView rows;
  rows.data = y.data;
  rows.dtype = y.dtype;
  rows.append(problem.batch, y.image);
  rows.append(problem.rows.output, y.row);
  rows.append(problem.columns.output, y.column);
  rows.column_stride = y.channel;
  return rows;
}

inline std::int64_t rows_per_image(const Conv2dProblem& problem) {
  return problem.rows.input * problem.columns.input * problem.groups;
}

inline std::int64_t results_per_image(const Conv2dProblem& problem) {
  return problem.rows.output * problem.columns.output;
}

// Calls run(first result, count), `most` results at a time, until those of images first .. end - 1 are made.
template <class Run>
void for_each_results(const Conv2dProblem& problem, std::int64_t first, std::int64_t end, std::int64_t most,
                      const Run& run) {
  const std::int64_t last = end * results_per_image(problem);
  for (std::int64_t result = first * results_per_image(problem); result < last; result += most)
    run(result, std::min(most, last - result));
}

// Likewise calls run(a, stream) with `a` told which results they are: an Arguments that is a WindowResults.
template <class Arguments, class Run>
void launch_results(Arguments& a, const Conv2dProblem& problem, const Conv2dBounds& bounds, std::int64_t first,
                    std::int64_t end, const Run& run) {
  a.first_image = first;
  for_each_results(problem, first, end, bounds.results, [&](std::int64_t result, std::int64_t results) {
    a.first_row = result;
    a.first = FirstResult(a.window, result);
    a.results = static_cast<int>(results);
    run(a, static_cast<cudaStream_t>(problem.stream));
  });
}

// How many images' codes fit into the bound, `row_codes` in each row.
inline std::int64_t images_at_once(const Conv2dProblem& problem, std::int64_t row_codes, std::int64_t bound) {
  const std::int64_t image = std::max<std::int64_t>(rows_per_image(problem) * std::max<std::int64_t>(row_codes, 1), 1);
  return std::min(std::max<std::int64_t>(bound / image, 1), problem.batch);
}

}  // namespace qcore
