#pragma once

#include <cstdint>

#include "formats/row_view.h"

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

// Returns the pixels of a batch of images as rows of channels.
constexpr RowView pixel_rows(const ImageView& view, std::int64_t images, std::int64_t rows, std::int64_t columns) {
  RowView pixels;
  pixels.data = view.data;
  pixels.dtype = view.dtype;
  pixels.append(images, view.image);
  pixels.append(rows, view.row);
  pixels.append(columns, view.column);
  pixels.column_stride = view.channel;
  return pixels;
}

}  // namespace qcore
