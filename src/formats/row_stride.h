#pragma once

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

}  // namespace qcore
