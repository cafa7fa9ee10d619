#pragma once

#include <cstdint>

#include "decoder/cpu/vtable.h"
#include "formats/element.h"
#include "formats/row_view.h"

// Rows of strided arrays of any floating-point dtype as contiguous fp32.
namespace qcore {

struct ConstElements {
  const void* data;
  DType dtype;
  std::int64_t offset, stride;  // in elements
};
struct Elements {
  void* data;
  DType dtype;
  std::int64_t offset, stride;
};

inline ConstElements row_of(const RowView& view, std::int64_t row, std::int64_t column = 0) {
  return {view.data, view.dtype, view.row_offset(row) + column * view.column_stride, view.column_stride};
}
inline Elements writable_row_of(const RowView& view, std::int64_t row, std::int64_t column = 0) {
  return {const_cast<void*>(view.data), view.dtype, view.row_offset(row) + column * view.column_stride,
          view.column_stride};
}

// The head of a token: x is [B, T, heads, D].
inline ConstElements head_of(const TensorView& x, std::int64_t b, std::int64_t t, std::int64_t head) {
  return {x.data, x.dtype, b * x.strides[0] + t * x.strides[1] + head * x.strides[2], x.strides[3]};
}
inline Elements writable_head_of(const TensorView& x, std::int64_t b, std::int64_t t, std::int64_t head) {
  return {x.data, x.dtype, b * x.strides[0] + t * x.strides[1] + head * x.strides[2], x.strides[3]};
}

inline void load_row(const DecoderKernels& kernels, const ConstElements& x, std::int64_t count, float* row) {
  if (x.stride == 1)
    kernels.load_row(static_cast<const char*>(x.data) + x.offset * item_size(x.dtype), static_cast<int>(x.dtype), count,
                     row);
  else
    for (std::int64_t i = 0; i < count; ++i) row[i] = load_float(x.data, x.dtype, x.offset + i * x.stride);
}

inline void store_row(const DecoderKernels& kernels, const float* row, std::int64_t count, const Elements& y) {
  if (y.stride == 1)
    kernels.store_row(row, count, static_cast<int>(y.dtype),
                      static_cast<char*>(y.data) + y.offset * item_size(y.dtype));
  else
    for (std::int64_t i = 0; i < count; ++i) store_float(y.data, y.dtype, y.offset + i * y.stride, row[i]);
}

// Rounds a row to a dtype.
inline void round_row(const DecoderKernels& kernels, float* row, std::int64_t count, DType dtype, void* memory) {
  if (dtype == DType::f32) return;
  kernels.store_row(row, count, static_cast<int>(dtype), memory);
  kernels.load_row(memory, static_cast<int>(dtype), count, row);
}

}  // namespace qcore
