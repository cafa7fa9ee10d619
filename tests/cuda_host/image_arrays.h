#pragma once

#include <cstdint>
#include <vector>

#include "qcore/tensor_view.h"

namespace qcore {

enum class ImageOrder { channels_last, channels_first, scattered };

// [N, C, H, W] in a larger, poisoned buffer.
struct ImageArray {
  DType dtype;
  std::int64_t shape[4], strides[4], first = 0;
  std::vector<char> bytes;

  // "scattered" is channels_last with gaps, off alignment, images backwards.
  ImageArray(ImageOrder order, DType type, const std::int64_t (&extents)[4]) : dtype(type) {
    for (int axis = 0; axis < 4; ++axis) shape[axis] = extents[axis];
    const std::int64_t c = shape[1], h = shape[2], w = shape[3];
    const std::int64_t gap = order == ImageOrder::scattered ? 3 : 0;
    if (order == ImageOrder::channels_first) {
      strides[3] = 1, strides[2] = w, strides[1] = h * w, strides[0] = c * h * w;
    } else {
      strides[1] = 1, strides[3] = c + gap, strides[2] = w * strides[3] + gap, strides[0] = h * strides[2] + gap;
    }
    first = 16 + gap;
    if (order == ImageOrder::scattered) {
      first += (shape[0] > 0 ? shape[0] - 1 : 0) * strides[0];
      strides[0] = -strides[0];
    }
    const std::int64_t image = strides[0] < 0 ? -strides[0] : strides[0];
    bytes.assign(static_cast<std::size_t>((16 + 2 * gap + shape[0] * image + 16) * item_size(dtype)), '\xcd');
  }

  // Returns the offset of element `i` in the order N, C, H, W.
  std::int64_t at(std::int64_t i) const {
    std::int64_t offset = first;
    for (int axis = 3; axis >= 0; --axis) {
      offset += i % shape[axis] * strides[axis];
      i /= shape[axis];
    }
    return offset;
  }
  TensorView view(const void* memory = nullptr) const {
    TensorView v;
    v.dtype = dtype;
    v.rank = 4;
    for (int axis = 0; axis < 4; ++axis) v.shape[axis] = shape[axis], v.strides[axis] = strides[axis];
    v.data = const_cast<char*>(static_cast<const char*>(memory ? memory : bytes.data())) + first * item_size(dtype);
    if (memory) v.device = {DeviceType::cuda, 0};
    return v;
  }
};

}  // namespace qcore
