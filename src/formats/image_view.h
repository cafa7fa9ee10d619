#pragma once

#include <cstdint>

#include "qcore/tensor_view.h"

namespace qcore {

// [N, C, H, W], strides in elements.
struct ImageView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t image = 0, channel = 0, row = 0, column = 0;

  ImageView() = default;
  explicit ImageView(const TensorView& view)
      : data(view.data),
        dtype(view.dtype),
        image(view.strides[0]),
        channel(view.strides[1]),
        row(view.strides[2]),
        column(view.strides[3]) {}

  constexpr std::int64_t offset(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
    return n * image + c * channel + h * row + w * column;
  }
};

}  // namespace qcore
