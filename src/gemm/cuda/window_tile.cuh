#pragma once

#include "formats/image_view.h"
#include "formats/packed_layout.h"
#include "gemm/cuda/window.cuh"

namespace qcore {

// The results of one launch under a window, beside what a kernel of matrices is told.
struct WindowResults {
  DeviceWindow window;       // steps in the kernel's rows of x, or in their parts
  ImageView y;               // out.y again
  std::int64_t first_image;  // of x, counted in out.y
  FirstResult first;         // first_row again
  int results;               // of this launch
  std::int64_t groups;
};

// Where a tile's results have their windows and themselves lie, in shared memory.
template <int kRows>
struct WindowPlaces {
  WindowOrigins<kRows> origins;
  std::int64_t y[kRows];  // of channel 0, in elements
};

// A tile's results under a window. The third axis of the grid is groups, each of which has panels of its own.
// `Arguments` has w and is a WindowResults.
template <class Arguments, int kColumns, int kRows>
class WindowTile {
 public:
  static constexpr bool kWindow = true;

  __device__ WindowTile(const Arguments& a, WindowPlaces<kRows>& places) : a_(a), places_(places) {}
  // By all threads.
  __device__ void set_places() const {
    const int first = static_cast<int>(first_row());
    places_.origins.set(a_.window, a_.first, first, a_.results, a_.first_image);
    for (int i = static_cast<int>(threadIdx.x); i < kRows && first + i < a_.results;
         i += static_cast<int>(blockDim.x)) {
      const ResultPlace place(a_.window, a_.first, first + i);
      places_.y[i] = a_.y.offset(place.image, 0, place.row, place.column);
    }
    __syncthreads();
  }

  __device__ std::int64_t first_panel() const {
    return blockIdx.z * group_panels() + static_cast<std::int64_t>(blockIdx.x) * (kColumns / PackedLayout::kPanelRows);
  }
  __device__ std::int64_t last_panel() const { return (blockIdx.z + 1) * group_panels(); }  // exclusive end
  __device__ std::int64_t first_column() const { return first_panel() * PackedLayout::kPanelRows; }
  __device__ std::int64_t last_column() const {
    const std::int64_t column = last_panel() * PackedLayout::kPanelRows;
    return column < a_.w.n ? column : a_.w.n;
  }
  __device__ std::int64_t first_row() const { return static_cast<std::int64_t>(blockIdx.y) * kRows; }
  __device__ std::int64_t count() const { return a_.results; }
  // Where the tile's result `i` lies in y, in elements.
  __device__ std::int64_t y_offset(int i) const { return places_.y[i]; }

  // What lies under a tap of the result `i`, in steps of the window.
  __device__ bool find(int i, int tap_row, int tap_column, std::int64_t& place) const {
    return places_.origins.of[i].find(a_.window, tap_row, tap_column, place);
  }

 protected:
  const Arguments& a_;

 private:
  __device__ std::int64_t group_panels() const { return a_.w.panels / a_.groups; }

  WindowPlaces<kRows>& places_;
};

}  // namespace qcore
