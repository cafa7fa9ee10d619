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
