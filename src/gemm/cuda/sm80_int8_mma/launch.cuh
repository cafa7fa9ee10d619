#pragma once

#include "gemm/cuda/sm80_int8_mma/gemm.cuh"
#include "gemm/cuda/window/window_tile.cuh"
#include "runtime/memory.h"

// The kernel for rows of a matrix and for those under a window, and the choice among its instances.
namespace qcore::sm80_int8_mma {

struct WindowArguments : Arguments, WindowResults {};  // window: steps in rows of codes

// A product of matrices: result m takes row m, all columns.
template <Size kSize>
class GemmRows {
  static constexpr int kColumns = Tuning::shape(kSize).columns(), kRows = Tuning::shape(kSize).rows();

 public:
  static constexpr bool kWindow = false, kFours = true;
  using Given = Arguments;

  __device__ explicit GemmRows(const Arguments& a) : a_(a) {}
  __device__ std::int64_t first_panel() const {
    return static_cast<std::int64_t>(blockIdx.x) * (kColumns / PackedLayout::kPanelRows);
  }
  __device__ std::int64_t last_panel() const { return a_.w.panels; }  // exclusive end
  __device__ std::int64_t last_column() const { return a_.w.n; }
  __device__ std::int64_t first_row() const { return static_cast<std::int64_t>(blockIdx.y) * kRows; }
  __device__ std::int64_t count() const { return a_.x.rows; }
  // Where the tile's result `i` lies in y, in elements.
  __device__ std::int64_t y_offset(int i) const {
    const std::int64_t m = a_.first_row + first_row() + i;
    return a_.y_row_stride ? m * a_.y_row_stride : a_.out.y.row_offset(m);
  }
  __device__ static std::int64_t y_column(std::int64_t n) { return n; }
  __device__ static std::int64_t bias_shift() { return 0; }
  // Returns the row of the tile's result `i`; -1 if there is none.
  __device__ std::int64_t row(int i) const { return first_row() + i < a_.x.rows ? first_row() + i : -1; }

 private:
  const Arguments& a_;
};

// A tile whose rows of codes change from tap to tap. The operations and their order are the reference's; where a tap
// lies in the padding, zeros are added.
template <Size kSize>
class Im2colRows : public WindowTile<WindowArguments, Tuning::shape(kSize).columns(), Tuning::shape(kSize).rows()> {
  using Tile = WindowTile<WindowArguments, Tuning::shape(kSize).columns(), Tuning::shape(kSize).rows()>;

 public:
  static constexpr bool kFours = false;
  using Given = WindowArguments;

  __device__ explicit Im2colRows(const WindowArguments& a)
      : Tile(a, block_shared<WindowPlaces<Tuning::shape(kSize).rows()>>()) {}
  // -1: there is none.
  __device__ std::int64_t row(int i) const {
    std::int64_t row;
    return Tile::find(i, tap_row_, tap_column_, row) ? row + blockIdx.z : -1;
  }
  __device__ void next_tap() {
    if (++tap_column_ == Tile::a_.window.kernel[1]) {
      tap_column_ = 0;
      ++tap_row_;
    }
  }

 private:
  int tap_row_ = 0, tap_column_ = 0;
};

// Returns how many thread blocks share a multiprocessor's registers. No instance spills with these numbers; a window
// needs more registers per thread.
template <class Rows>
constexpr int blocks_per_sm(Size size, int chunks) {
  if (size == Size::large || size == Size::many) return 1;
  return Rows::kWindow ? chunks == 4 ? 2 : 3 : chunks == 1 ? 4 : 3;
}

template <class Rows, int kBits, int kChunks, Blocks kBlocks, bool kOffsets, Size kSize>
__global__ void __launch_bounds__(Tuning::shape(kSize).threads(), blocks_per_sm<Rows>(kSize, kChunks))
    sm80_int8_mma_kernel(const __grid_constant__ typename Rows::Given a) {
  const Rows rows(a);
  Gemm<Rows, kBits, kChunks, kBlocks, kOffsets, kSize>(a, rows).run();
}

template <template <Size> class RowsOf, int kBits, int kChunks, Blocks kBlocks, bool kOffsets, Size kSize>
void launch_kernel(const typename RowsOf<kSize>::Given& a, cudaStream_t stream) {
  using Rows = RowsOf<kSize>;
  constexpr Shape kShape = Tuning::shape(kSize);
  launch("sm80_int8_mma", sm80_int8_mma_kernel<Rows, kBits, kChunks, kBlocks, kOffsets, kSize>,
         {grid_of(a, kShape), dim3(static_cast<unsigned>(kShape.threads())),
          Gemm<Rows, kBits, kChunks, kBlocks, kOffsets, kSize>::kSharedBytes},
         stream, a);
}

template <template <Size> class RowsOf, int kBits, int kChunks, Size kSize>
void launch_whole(const typename RowsOf<kSize>::Given& a, cudaStream_t stream) {
  if constexpr (!RowsOf<kSize>::kWindow)
    if (a.w.offsets) return launch_kernel<RowsOf, kBits, kChunks, Blocks::whole, true, kSize>(a, stream);
  launch_kernel<RowsOf, kBits, kChunks, Blocks::whole, false, kSize>(a, stream);
}

template <template <Size> class RowsOf, int kBits, Size kSize>
void launch_size(const typename RowsOf<kSize>::Given& a, cudaStream_t stream) {
  constexpr Size kWholeSize = !RowsOf<kSize>::kWindow && kSize == Size::large ? Size::many : kSize;
  // Under a window, weights with offsets go by parts of blocks: half as many instances.
  const bool whole = !a.w.sums && !(RowsOf<kSize>::kWindow && a.w.offsets);
  switch (whole ? a.x.padded_block : 0) {
    case 32:
      return launch_whole<RowsOf, kBits, 1, kWholeSize>(a, stream);
    case 64:
      return launch_whole<RowsOf, kBits, 2, kWholeSize>(a, stream);
    case 128:
      return launch_whole<RowsOf, kBits, 4, kWholeSize>(a, stream);
    default:
      return launch_kernel<RowsOf, kBits, 1, Blocks::part, true, kSize>(a, stream);
  }
}

// y = act(x W^T + bias). Needs sm_80; with several groups whole panels in each.
template <template <Size> class RowsOf>
void run(const typename RowsOf<Size::large>::Given& a, cudaStream_t stream) {
  constexpr Size kFewer = RowsOf<Size::large>::kWindow ? Size::small : Size::few;
  const bool large = tiles_of(a, Tuning::shape(Size::large)) >= a.enough_tiles;
  if (a.w.bits == 8)
    large ? launch_size<RowsOf, 8, Size::large>(a, stream) : launch_size<RowsOf, 8, kFewer>(a, stream);
  else
    large ? launch_size<RowsOf, 4, Size::large>(a, stream) : launch_size<RowsOf, 4, kFewer>(a, stream);
}

}  // namespace qcore::sm80_int8_mma
