#pragma once

#include "cuda/window.cuh"
#include "formats/packed_layout.h"

namespace qcore {

// A tile's results under a window. The third axis of the grid is groups, each of which has panels of its own.
// `Arguments` has w, window, first, first_image, results and groups.
template <class Arguments, int kColumns, int kRows>
class WindowTile {
 public:
  static constexpr bool kWindow = true;

  __device__ WindowTile(const Arguments& a, WindowOrigins<kRows>& origins) : a_(a), origins_(origins) {}
  // By all threads; a barrier must follow.
  __device__ void set_origins() const {
    origins_.set(a_.window, a_.first, static_cast<int>(first_row()), a_.results, a_.first_image);
  }

  __device__ std::int64_t first_panel() const {
    return blockIdx.z * group_panels() + static_cast<std::int64_t>(blockIdx.x) * (kColumns / PackedLayout::kPanelRows);
  }
  __device__ std::int64_t last_panel() const { return (blockIdx.z + 1) * group_panels(); }  // not any more
  __device__ std::int64_t first_column() const { return first_panel() * PackedLayout::kPanelRows; }
  __device__ std::int64_t last_column() const {
    const std::int64_t column = last_panel() * PackedLayout::kPanelRows;
    return column < a_.w.n ? column : a_.w.n;
  }
  __device__ std::int64_t first_row() const { return static_cast<std::int64_t>(blockIdx.y) * kRows; }
  __device__ std::int64_t count() const { return a_.results; }

  // What lies under a tap of the result `i`, in steps of the window.
  __device__ bool find(int i, int tap_row, int tap_column, std::int64_t& place) const {
    return origins_.of[i].find(a_.window, tap_row, tap_column, place);
  }

 protected:
  const Arguments& a_;

 private:
  __device__ std::int64_t group_panels() const { return a_.w.panels / a_.groups; }

  WindowOrigins<kRows>& origins_;
};

}  // namespace qcore
