#pragma once

#include "gemm/cuda/window/window.cuh"
#include "runtime/cuda/ptx_tensor_map.cuh"

// Windows whose pixels the copy engine of sm_90 finds: see ptx::ImageParts.
namespace qcore {

// From the last pixel of an axis to where the window begins in its last position.
inline std::int64_t behind_last_pixel(std::int64_t output, std::int64_t stride, std::int64_t before,
                                      std::int64_t input) {
  return (output - 1) * stride - before - (input - 1);
}

inline bool fits_image_copies(const numerics::WindowAxis& axis) {
  constexpr std::int64_t kCorner = 127, kTap = 255, kStride = 8;
  const std::int64_t behind = behind_last_pixel(axis.output, axis.stride, axis.before, axis.input);
  return axis.input > 0 && axis.before <= kCorner && behind >= -kCorner && behind <= kCorner &&
         axis.stride <= kStride && (axis.kernel - 1) * axis.dilation <= kTap;
}

// Returns what is copied at a time of images of `channels` values: part_bytes of part_pixels. Steps are in values.
inline ptx::ImageParts image_parts(const void* data, int value_bytes, std::int64_t images, const DeviceWindow& window,
                                   std::int64_t channels, std::int64_t image_step, std::int64_t row_step,
                                   std::int64_t column_step, int part_pixels, int part_bytes = 128) {
  const auto behind = [&](int axis) {
    return static_cast<int>(
        behind_last_pixel(window.output[axis], window.stride[axis], window.before[axis], window.input[axis]));
  };
  return {data,       value_bytes,      images,           window.input[0],   window.input[1],   channels,
          image_step, row_step,         column_step,      -window.before[0], -window.before[1], behind(0),
          behind(1),  window.stride[0], window.stride[1], part_pixels,       part_bytes};
}

}  // namespace qcore
