#pragma once

#include <type_traits>

#include "formats/image_view.h"
#include "formats/packed_layout.h"
#include "gemm/cuda/window/window.cuh"
#include "runtime/memory.h"

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

// The grid of a kernel whose thread blocks make a tile of `shape` each: of rows of a matrix, or of results under a
// window, whose groups are the third axis.
template <class Arguments, class Shape>
dim3 grid_of(const Arguments& a, const Shape& shape) {
  std::int64_t results = 0, groups = 1;
  if constexpr (std::is_base_of_v<WindowResults, Arguments>)
    results = a.results, groups = a.groups;
  else
    results = a.x.rows;
  return dim3(static_cast<unsigned>(ceil_div(ceil_div(a.w.n, groups), shape.columns())),
              static_cast<unsigned>(ceil_div(results, shape.rows())), static_cast<unsigned>(groups));
}
template <class Arguments, class Shape>
std::int64_t tiles_of(const Arguments& a, const Shape& shape) {
  const dim3 grid = grid_of(a, shape);
  return std::int64_t{grid.x} * grid.y * grid.z;
}

// Where a tile's results have their windows and themselves lie, in shared memory.
template <int kRows>
struct WindowPlaces {
  WindowOrigins<kRows> origins;
  std::int64_t y[kRows];  // of channel 0, in elements

  // Sets the places of results from `first` on in a launch. Called by all threads.
  template <class Arguments>
  __device__ void set(const Arguments& a, int first) {
    origins.set(a.window, a.first, first, a.results, a.first_image);
    for (int i = static_cast<int>(threadIdx.x); i < kRows && first + i < a.results; i += static_cast<int>(blockDim.x)) {
      const ResultPlace place(a.window, a.first, first + i);
      y[i] = a.y.offset(place.image, 0, place.row, place.column);
    }
    __syncthreads();
  }
};

// A tile's results under a window. The third axis of the grid is groups, each of which has panels of its own.
// `Arguments` has w and is a WindowResults.
template <class Arguments, int kColumns, int kRows>
class WindowTile {
 public:
  static constexpr bool kWindow = true;

  // By all threads, which set `places`.
  __device__ WindowTile(const Arguments& a, WindowPlaces<kRows>& places) : a_(a), places_(places) {
    places.set(a, static_cast<int>(first_row()));
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

  __device__ static std::int64_t y_column(std::int64_t n) { return n; }
  __device__ static std::int64_t bias_shift() { return 0; }

  // Finds the pixel under a tap of result `i`, in steps of the window.
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
