#pragma once

#include <algorithm>

#include "gemm/cuda/sm80_float_mma/gemm.cuh"
#include "linear/cuda/sm80_float_mma/rows.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

// The kernel and the choice among its instances; each type of activations has its own file.
namespace qcore::sm80_float_mma {

template <ptx::Half kHalf, int kPlanes, int kBits, bool kOffsets, Promote kPromote, Size kSize>
__global__ void __launch_bounds__(kThreads, Tuning::blocks_per_sm(kSize, kPlanes))
    sm80_float_mma_kernel(const Arguments a) {
  using Rows = GemmRows<kSize, kPlanes>;
  Gemm<Rows, kHalf, kPlanes, kBits, kOffsets, kPromote>(a, Rows(a)).run();
}

template <ptx::Half kHalf, int kPlanes, int kBits, bool kOffsets, Promote kPromote, Size kSize>
void launch_kernel(const Arguments& a, cudaStream_t stream) {
  constexpr Shape kShape = Tuning::shape(kSize, kPlanes);
  launch("sm80_float_mma", sm80_float_mma_kernel<kHalf, kPlanes, kBits, kOffsets, kPromote, kSize>,
         {dim3(static_cast<unsigned>(ceil_div(a.w.n, kShape.columns())),
               static_cast<unsigned>(ceil_div(a.x.rows, kShape.rows()))),
          dim3(kThreads), Gemm<GemmRows<kSize, kPlanes>, kHalf, kPlanes, kBits, kOffsets, kPromote>::kSharedBytes},
         stream, a);
}

template <ptx::Half kHalf, int kPlanes, int kBits, bool kOffsets, Size kSize>
void launch_tiles(const Arguments& a, std::int64_t block_chunks, cudaStream_t stream) {
  constexpr Shape kShape = Tuning::shape(kSize, kPlanes);
  constexpr int kParts = kShape.chunks / kShape.warps_k;
  // Sums that live from stage to stage are too many registers for large tiles of 8 bits with offsets.
  constexpr bool kByChunk = kParts > 1, kByStage = kSize != Size::large || kBits == 4 || !kOffsets;
  if constexpr (kByStage)
    if (block_chunks % kParts == 0)
      return launch_kernel<kHalf, kPlanes, kBits, kOffsets, Promote::stage, kSize>(a, stream);
  if constexpr (kByChunk) launch_kernel<kHalf, kPlanes, kBits, kOffsets, Promote::chunk, kSize>(a, stream);
}

template <ptx::Half kHalf, int kPlanes, int kBits, bool kOffsets>
void launch_size(const Arguments& a, cudaStream_t stream) {
  constexpr Shape kLarge = Tuning::shape(Size::large, kPlanes);
  // Three planes take more registers than there are for large tiles.
  const bool large =
      kPlanes == 1 && ceil_div(a.w.n, kLarge.columns()) * ceil_div(a.x.rows, kLarge.rows()) >= a.enough_tiles;
  const std::int64_t block_chunks = ceil_div(std::min(a.w.block_size, a.w.k), kChunk);
  if (a.x.rows <= 8)
    launch_tiles<kHalf, kPlanes, kBits, kOffsets, Size::rows8>(a, block_chunks, stream);
  else if (a.x.rows <= Tuning::kMaxFewRows)
    launch_tiles<kHalf, kPlanes, kBits, kOffsets, Size::rows16>(a, block_chunks, stream);
  else if (!large)
    launch_tiles<kHalf, kPlanes, kBits, kOffsets, Size::medium>(a, block_chunks, stream);
  else if constexpr (kPlanes == 1)
    launch_tiles<kHalf, kPlanes, kBits, kOffsets, Size::large>(a, block_chunks, stream);
}

template <ptx::Half kHalf, int kPlanes>
void launch_weight(const Arguments& a, cudaStream_t stream) {
  if (a.w.bits == 8)
    a.w.offsets ? launch_size<kHalf, kPlanes, 8, true>(a, stream) : launch_size<kHalf, kPlanes, 8, false>(a, stream);
  else
    a.w.offsets ? launch_size<kHalf, kPlanes, 4, true>(a, stream) : launch_size<kHalf, kPlanes, 4, false>(a, stream);
}

}  // namespace qcore::sm80_float_mma
