#pragma once

#include <algorithm>

#include "gemm/cuda/sm80_float_mma/gemm.cuh"
#include "gemm/cuda/sm80_float_mma/gemm_rows.cuh"
#include "gemm/cuda/sm80_float_mma/im2col_rows.cuh"
#include "runtime/memory.h"

// The kernel for rows of a matrix and for those under a window, and the choice among its instances; each type of
// activations has its own file.
namespace qcore::sm80_float_mma {

using ptx::Half;

template <class Rows, Half kHalf, int kPlanes, int kBits, bool kOffsets, Promote kPromote, Size kSize>
__global__ void __launch_bounds__(kThreads, Tuning::blocks_per_sm(kSize, kPlanes))
    sm80_float_mma_kernel(const typename Rows::Given a) {
  Gemm<Rows, kHalf, kPlanes, kBits, kOffsets, kPromote>(a, Rows(a)).run();
}

template <class Rows, Half kHalf, int kPlanes, int kBits, bool kOffsets, Promote kPromote, Size kSize>
void launch_kernel(const typename Rows::Given& a, cudaStream_t stream) {
  constexpr Shape kShape = Rows::kShape;
  using Kernel = Gemm<Rows, kHalf, kPlanes, kBits, kOffsets, kPromote>;
  static_assert(Kernel::kSharedBytes + (Rows::kWindow ? sizeof(WindowPlaces<kShape.rows()>) : 0) <= 99 << 10,
                "what every device since sm_80 grants");
  launch("sm80_float_mma", sm80_float_mma_kernel<Rows, kHalf, kPlanes, kBits, kOffsets, kPromote, kSize>,
         {grid_of(a, kShape), dim3(kThreads), Kernel::kSharedBytes}, stream, a);
}

template <class Rows, Half kHalf, int kPlanes, int kBits, bool kOffsets, Size kSize>
void launch_tiles(const typename Rows::Given& a, cudaStream_t stream) {
  constexpr int kParts = Rows::kShape.chunks / Rows::kShape.warps_k;
  // Sums that live from stage to stage are too many registers for large tiles of 8 bits with offsets, and for a
  // window's of 4 bits.
  constexpr bool kByStage = kSize != Size::large || !kOffsets || (kBits == 4 && !Rows::kWindow);
  if constexpr (kByStage)
    if (ceil_div(std::min(a.w.block_size, a.w.k), kChunk) % kParts == 0)
      return launch_kernel<Rows, kHalf, kPlanes, kBits, kOffsets, Promote::stage, kSize>(a, stream);
  if constexpr (!kByStage || kParts > 1)
    launch_kernel<Rows, kHalf, kPlanes, kBits, kOffsets, Promote::chunk, kSize>(a, stream);
}

template <template <Size, int> class RowsOf, Half kHalf, int kPlanes, int kBits, bool kOffsets>
void launch_size(const typename RowsOf<Size::large, kPlanes>::Given& a, cudaStream_t stream) {
  constexpr bool kWindow = RowsOf<Size::large, kPlanes>::kWindow;
  const auto enough = [&](Size size) { return tiles_of(a, Tuning::shape(size, kPlanes, kWindow)) >= a.enough_tiles; };
  if constexpr (!kWindow)
    if (a.x.rows <= 8)
      return launch_tiles<RowsOf<Size::rows8, kPlanes>, kHalf, kPlanes, kBits, kOffsets, Size::rows8>(a, stream);
  if (kWindow ? !enough(Size::medium) && (kPlanes > 1 || !enough(Size::large)) : a.x.rows <= Tuning::kMaxFewRows)
    return launch_tiles<RowsOf<Size::rows16, kPlanes>, kHalf, kPlanes, kBits, kOffsets, Size::rows16>(a, stream);
  // Three planes take more registers than there are for large tiles.
  if constexpr (kPlanes == 1) {
    constexpr Size kLargest = kWindow || kOffsets ? Size::large : Size::tall;
    if (enough(Size::large))
      return launch_tiles<RowsOf<kLargest, kPlanes>, kHalf, kPlanes, kBits, kOffsets, kLargest>(a, stream);
    if constexpr (!kWindow) {
      if (enough(Size::wide))
        return launch_tiles<RowsOf<Size::wide, kPlanes>, kHalf, kPlanes, kBits, kOffsets, Size::wide>(a, stream);
      if (!enough(Size::medium))
        return launch_tiles<RowsOf<Size::narrow, kPlanes>, kHalf, kPlanes, kBits, kOffsets, Size::narrow>(a, stream);
    }
  }
  launch_tiles<RowsOf<Size::medium, kPlanes>, kHalf, kPlanes, kBits, kOffsets, Size::medium>(a, stream);
}

template <template <Size, int> class RowsOf, Half kHalf, int kPlanes>
void launch_weight(const typename RowsOf<Size::large, kPlanes>::Given& a, cudaStream_t stream) {
  if (a.w.bits == 8)
    a.w.offsets ? launch_size<RowsOf, kHalf, kPlanes, 8, true>(a, stream)
                : launch_size<RowsOf, kHalf, kPlanes, 8, false>(a, stream);
  else
    a.w.offsets ? launch_size<RowsOf, kHalf, kPlanes, 4, true>(a, stream)
                : launch_size<RowsOf, kHalf, kPlanes, 4, false>(a, stream);
}

}  // namespace qcore::sm80_float_mma
