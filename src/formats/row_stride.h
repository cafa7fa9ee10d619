#pragma once

#include <cstdint>

#include "formats/row_view.h"

namespace qcore {

// From row to row, in elements; 0 if the leading axes do not merge into one.
inline std::int64_t row_stride(const RowView& view) {
  std::int64_t stride = 0, rows = 1;
  for (int axis = view.leading - 1; axis >= 0; --axis) {
    if (view.shape[axis] == 1) continue;
    if (rows == 1)
      stride = view.strides[axis];
    else if (view.strides[axis] != stride * rows)
      return 0;
    rows *= view.shape[axis];
  }
  return rows == 1 ? 1 : stride;
}

// Whether `count` neighboring columns of every row lie side by side, at a multiple of their size.
inline bool columns_lie_together(const RowView& view, int count) {
  const auto bytes = static_cast<std::uintptr_t>(count * item_size(view.dtype));
  if (view.column_stride != 1 || reinterpret_cast<std::uintptr_t>(view.data) % bytes) return false;
  for (int axis = 0; axis < view.leading; ++axis)
    if (view.shape[axis] != 1 && view.strides[axis] % count) return false;
  return true;
}

}  // namespace qcore
