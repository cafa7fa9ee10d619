#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "numerics/window.h"

// A convolution's window on a device: which input element a result's tap lies on. Extents fit in int.
namespace qcore {

struct DeviceWindow {
  int input[2], output[2];  // along H, then W
  int kernel[2], stride[2], dilation[2], before[2];
  std::int64_t image, row, column;  // steps of the input, in whatever it is made of
};

// Results in the order of images, rows and columns, from one on. Fewer than 2^30 follow it, and an image has fewer.
struct FirstResult {
  std::int64_t image;
  int within;

  FirstResult() = default;
  FirstResult(const DeviceWindow& window, std::int64_t result) {
    const std::int64_t per_image = static_cast<std::int64_t>(window.output[0]) * window.output[1];
    image = result / per_image;
    within = static_cast<int>(result % per_image);
  }
};

struct ResultPlace {
  std::int64_t image;
  int row, column;

  // Finds the place of result `i` after the first one.
  __device__ ResultPlace(const DeviceWindow& window, const FirstResult& first, int i) {
    const int all = first.within + i, rows = all / window.output[1], images = rows / window.output[0];
    image = first.image + images;
    row = rows - images * window.output[0];
    column = all - rows * window.output[1];
  }
};

// Bounds that a window must keep so that its places fit in int.
constexpr std::int64_t kMaxWindowExtent = 1 << 28;
constexpr std::int64_t kMaxPixels = std::int64_t{1} << 30;  // of one image

inline bool fits_device_window(const numerics::WindowAxis& axis) {
  return axis.input + 2 * axis.before + axis.stride * axis.output + axis.dilation * axis.kernel < kMaxWindowExtent;
}

// Null if a device's window can be these axes.
inline const char* window_unsupported_reason(const numerics::WindowAxis& rows, const numerics::WindowAxis& columns) {
  if (!fits_device_window(rows) || !fits_device_window(columns) || rows.output * columns.output > kMaxPixels)
    return "it takes images of up to 2^30 pixels, and extents and windows up to 2^28";
  return nullptr;
}

inline DeviceWindow device_window(const numerics::WindowAxis& rows, const numerics::WindowAxis& columns,
                                  std::int64_t image, std::int64_t row, std::int64_t column) {
  DeviceWindow window{};
  const numerics::WindowAxis* axes[] = {&rows, &columns};
  for (int i = 0; i < 2; ++i) {
    window.input[i] = static_cast<int>(axes[i]->input);
    window.output[i] = static_cast<int>(axes[i]->output);
    window.kernel[i] = static_cast<int>(axes[i]->kernel);
    window.stride[i] = static_cast<int>(axes[i]->stride);
    window.dilation[i] = static_cast<int>(axes[i]->dilation);
    window.before[i] = static_cast<int>(axes[i]->before);
  }
  window.image = image, window.row = row, window.column = column;
  return window;
}

// Where a result's window begins; also outside of the image.
struct WindowOrigin {
  std::int64_t image;  // where its image lies
  int row, column;

  // The input's first image is `first_image`.
  __device__ void set(const DeviceWindow& window, const ResultPlace& place, std::int64_t first_image) {
    image = (place.image - first_image) * window.image;
    row = place.row * window.stride[0] - window.before[0];
    column = place.column * window.stride[1] - window.before[1];
  }
  // A result that there is none of: nothing lies under its taps.
  __device__ void set_nowhere() {
    image = 0;
    row = column = -(1 << 30);
  }
  // Whether an input element lies under a tap, and where.
  __device__ bool find(const DeviceWindow& window, int tap_row, int tap_column, std::int64_t& place) const {
    const int h = row + tap_row * window.dilation[0], w = column + tap_column * window.dilation[1];
    if (h < 0 || w < 0 || h >= window.input[0] || w >= window.input[1]) return false;
    place = image + h * window.row + w * window.column;
    return true;
  }
};

// The origins of a tile's results, in shared memory.
template <int kRows>
struct WindowOrigins {
  WindowOrigin of[kRows];

  // Sets the origins of results from first_row on, counted from the first one, of which there are `count`. Called by
  // all threads; a barrier must follow.
  __device__ void set(const DeviceWindow& window, const FirstResult& first, int first_row, int count,
                      std::int64_t first_image) {
    for (int i = static_cast<int>(threadIdx.x); i < kRows; i += static_cast<int>(blockDim.x)) {
      if (first_row + i < count)
        of[i].set(window, ResultPlace(window, first, first_row + i), first_image);
      else
        of[i].set_nowhere();
    }
  }
};

}  // namespace qcore
