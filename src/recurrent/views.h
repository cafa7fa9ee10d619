#pragma once

#include <utility>

#include "qcore/tensor_view.h"

// Views of a recurrent layer's arrays with an axis more, less or in another place.
namespace qcore {

// Without its first axis, at an index of it; a null pointer gives an empty view.
inline TensorView slice(const TensorView* view, std::int64_t index) {
  if (!view) return {};
  TensorView part = *view;
  part.data = static_cast<char*>(view->data) + index * view->strides[0] * item_size(view->dtype);
  --part.rank;
  for (int axis = 0; axis < part.rank; ++axis) part.shape[axis] = view->shape[axis + 1];
  for (int axis = 0; axis < part.rank; ++axis) part.strides[axis] = view->strides[axis + 1];
  return part;
}

// Features [first, first + count).
inline TensorView columns(const TensorView& view, std::int64_t first, std::int64_t count) {
  TensorView part = view;
  part.data = static_cast<char*>(view.data) + first * view.strides[2] * item_size(view.dtype);
  part.shape[2] = count;
  return part;
}

// With a first axis of size 1.
inline TensorView with_axis(const TensorView& view) {
  TensorView more = view;
  ++more.rank;
  more.shape[0] = 1;
  more.strides[0] = 0;
  for (int axis = 1; axis < more.rank; ++axis) more.shape[axis] = view.shape[axis - 1];
  for (int axis = 1; axis < more.rank; ++axis) more.strides[axis] = view.strides[axis - 1];
  return more;
}

inline void swap_steps_and_rows(TensorView& view) {
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.strides[0], view.strides[1]);
}

}  // namespace qcore
