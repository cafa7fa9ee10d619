#pragma once

#include <algorithm>
#include <cstdint>

#include "conv2d/problem.h"

namespace qcore {

// Consecutive pixels in evenly spaced places: `first` of the image's pixels, at `offset` elements from its data.
struct PixelRun {
  std::int64_t first, count, offset;
};

// The pixels of a batch of images, counted row by row.
struct ImagePixels {
  ImageView view;
  std::int64_t images, rows, columns;

  std::int64_t count() const { return images * rows * columns; }

  // One distance from pixel to pixel, and that is view.column.
  bool evenly_spaced() const {
    return (rows == 1 || view.row == columns * view.column) &&
           (images == 1 || view.image == rows * columns * view.column);
  }

  // run(PixelRun) for the pixels [begin, end), in order.
  template <class Run>
  void for_runs(std::int64_t begin, std::int64_t end, const Run& run) const {
    const bool even = rows == 1 || view.row == columns * view.column;
    const std::int64_t length = even ? rows * columns : columns;
    while (begin < end) {
      const std::int64_t count = std::min(end, (begin / length + 1) * length) - begin;
      const std::int64_t row = begin / columns;
      run(PixelRun{begin, count, view.offset(row / rows, 0, row % rows, begin % columns)});
      begin += count;
    }
  }
};

inline ImagePixels input_pixels(const Conv2dProblem& problem) {
  return {problem.x, problem.batch, problem.rows.input, problem.columns.input};
}

inline ImagePixels output_pixels(const Conv2dProblem& problem) {
  return {problem.y, problem.batch, problem.rows.output, problem.columns.output};
}

}  // namespace qcore
