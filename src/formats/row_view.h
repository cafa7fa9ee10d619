#pragma once

#include <cstdint>

#include "qcore/tensor_view.h"

namespace qcore {

// A [rows, columns] view of an array of any rank: the leading axes are flattened, each with its own stride.
struct RowView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int leading = 0;
  std::int64_t shape[TensorView::kMaxRank] = {};    // of the leading axes
  std::int64_t strides[TensorView::kMaxRank] = {};  // likewise, in elements
  std::int64_t column_stride = 1;

  // Another leading axis, the innermost so far; merged with the one before if they lie evenly in memory.
  constexpr void append(std::int64_t extent, std::int64_t stride) {
    if (extent == 1) return;
    const int last = leading - 1;
    if (leading && strides[last] == stride * extent) {
      shape[last] *= extent;
      strides[last] = stride;
    } else {
      shape[leading] = extent;
      strides[leading++] = stride;
    }
  }

  constexpr std::int64_t row_offset(std::int64_t row) const {  // in elements
    std::int64_t offset = 0;
    for (int axis = leading - 1; axis > 0; --axis) {
      offset += row % shape[axis] * strides[axis];
      row /= shape[axis];
    }
    return leading > 0 ? offset + row * strides[0] : offset;
  }

  // Returns the step from row to row of a run, in elements; 0 if there is one row alone.
  constexpr std::int64_t row_stride() const { return leading > 0 ? strides[leading - 1] : 0; }

  // Calls run(first, count, offset) for runs of the rows [begin, end), in order: `count` rows from row `first` on, the
  // first of them `offset` elements from data.
  template <class Run>
  void for_runs(std::int64_t begin, std::int64_t end, const Run& run) const {
    const std::int64_t length = leading > 0 ? shape[leading - 1] : 1;
    while (begin < end) {
      const std::int64_t run_end = (begin / length + 1) * length, count = (run_end < end ? run_end : end) - begin;
      run(begin, count, row_offset(begin));
      begin += count;
    }
  }
};

// Flattens the leading axes of a view with at least one axis.
inline RowView row_view(const TensorView& view) {
  RowView rows;
  rows.data = view.data;
  rows.dtype = view.dtype;
  rows.column_stride = view.strides[view.rank - 1];
  for (int axis = 0; axis < view.rank - 1; ++axis) rows.append(view.shape[axis], view.strides[axis]);
  return rows;
}

}  // namespace qcore
