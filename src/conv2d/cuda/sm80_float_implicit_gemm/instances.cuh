#pragma once

#include "conv2d/cuda/sm80_float_implicit_gemm/rows.cuh"
#include "gemm/cuda/sm80_float_mma/gemm.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

// The kernel and the choice among its instances; each type of activations has its own file.
namespace qcore::sm80_float_implicit_gemm {

using ptx::Half;
using sm80_float_mma::Promote;
using sm80_float_mma::Shape;

template <Half kHalf, int kPlanes, int kBits, bool kOffsets, Size kSize>
struct Kernel {
  static constexpr Shape kShape = Tuning::shape(kSize);
  // Sums that live from stage to stage are too many registers for large tiles with offsets.
  static constexpr bool kByStage = kSize != Size::large || !kOffsets;
  using Rows = Im2colRows<kSize, kPlanes>;
  using Gemm = sm80_float_mma::Gemm<Rows, kHalf, kPlanes, kBits, kOffsets, kByStage ? Promote::stage : Promote::chunk>;
};

template <Half kHalf, int kPlanes, int kBits, bool kOffsets, Size kSize>
__global__ void __launch_bounds__(sm80_float_mma::kThreads, Tuning::blocks_per_sm(kSize, kPlanes))
    sm80_float_implicit_gemm_kernel(const Arguments a) {
  using Types = Kernel<kHalf, kPlanes, kBits, kOffsets, kSize>;
  const typename Types::Rows rows(a, block_shared<typename Types::Rows::Places>());
  rows.set_places();
  __syncthreads();
  typename Types::Gemm(a, rows).run();
}

template <Half kHalf, int kPlanes, int kBits, bool kOffsets, Size kSize>
void launch_kernel(const Arguments& a, cudaStream_t stream) {
  using Types = Kernel<kHalf, kPlanes, kBits, kOffsets, kSize>;
  constexpr Shape kShape = Types::kShape;
  static_assert(Types::Gemm::kSharedBytes + sizeof(typename Types::Rows::Places) <= 99 << 10,
                "what every device since sm_80 grants");
  launch("sm80_float_implicit_gemm", sm80_float_implicit_gemm_kernel<kHalf, kPlanes, kBits, kOffsets, kSize>,
         {dim3(static_cast<unsigned>(ceil_div(ceil_div(a.w.n, a.groups), kShape.columns())),
               static_cast<unsigned>(ceil_div(a.results, kShape.rows())), static_cast<unsigned>(a.groups)),
          dim3(sm80_float_mma::kThreads), Types::Gemm::kSharedBytes},
         stream, a);
}

inline std::int64_t tiles(const Arguments& a, Size size) {
  const Shape shape = Tuning::shape(size);
  return ceil_div(ceil_div(a.w.n, a.groups), shape.columns()) * a.groups * ceil_div(a.results, shape.rows());
}

template <Half kHalf, int kPlanes, int kBits, bool kOffsets>
void launch_size(const Arguments& a, cudaStream_t stream) {
  // Three planes take more registers than there are for large tiles.
  if constexpr (kPlanes == 1)
    if (tiles(a, Size::large) >= a.enough_tiles)
      return launch_kernel<kHalf, kPlanes, kBits, kOffsets, Size::large>(a, stream);
  if (tiles(a, Size::medium) >= a.enough_tiles)
    launch_kernel<kHalf, kPlanes, kBits, kOffsets, Size::medium>(a, stream);
  else
    launch_kernel<kHalf, kPlanes, kBits, kOffsets, Size::small>(a, stream);
}

template <Half kHalf, int kPlanes>
void launch_weight(const Arguments& a, cudaStream_t stream) {
  if (a.w.bits == 8)
    a.w.offsets ? launch_size<kHalf, kPlanes, 8, true>(a, stream) : launch_size<kHalf, kPlanes, 8, false>(a, stream);
  else
    a.w.offsets ? launch_size<kHalf, kPlanes, 4, true>(a, stream) : launch_size<kHalf, kPlanes, 4, false>(a, stream);
}

}  // namespace qcore::sm80_float_implicit_gemm
