#pragma once

#include <cstdint>

#include "lut/lut_storage.h"
#include "qcore/tensor_view.h"

namespace qcore {

// x and y with their axes sorted, the innermost last, and merged where both allow it.
struct LutProblem {
  const LutStorage* table = nullptr;
  DType x_dtype = DType::f32, y_dtype = DType::f32;
  const void* x = nullptr;
  void* y = nullptr;
  int rank = 0;
  std::int64_t shape[TensorView::kMaxRank] = {};
  std::int64_t x_strides[TensorView::kMaxRank] = {}, y_strides[TensorView::kMaxRank] = {};  // in elements
  Device device;
  void* stream = nullptr;

  std::int64_t size() const {
    std::int64_t product = 1;
    for (int axis = 0; axis < rank; ++axis) product *= shape[axis];
    return product;
  }
};

// Rows of x and y along one axis.
struct RowProblem {
  const LutStorage *first = nullptr, *second = nullptr;  // softmax: exp, reciprocal; rms_norm: rsqrt
  LutProblem rows;                                       // the other axes; its data pointers are those of the arrays
  std::int64_t count = 0, x_stride = 0, y_stride = 0;
  const void* weight = nullptr;  // of rms_norm
  DType weight_dtype = DType::f32;
  std::int64_t weight_stride = 0;
  float eps = 0.0f;
  Device device;
  void* stream = nullptr;
};

// Offsets in elements of position `index` in the sorted axes.
struct LutOffsets {
  std::int64_t x = 0, y = 0;
};
inline LutOffsets offsets_at(const LutProblem& problem, std::int64_t index) {
  LutOffsets at;
  for (int axis = problem.rank - 1; axis >= 0; --axis) {
    const std::int64_t i = index % problem.shape[axis];
    index /= problem.shape[axis];
    at.x += i * problem.x_strides[axis];
    at.y += i * problem.y_strides[axis];
  }
  return at;
}

}  // namespace qcore
