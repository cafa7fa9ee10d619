#include "gemm/cuda/sm80_int8_mma/gemm.cuh"
#include "linear/cuda/sm80_int8_mma/launch.cuh"
#include "runtime/memory.h"

namespace qcore::sm80_int8_mma {
namespace {

template <int kBits, int kChunks, Blocks kBlocks, bool kOffsets, Size kSize>
__global__ void __launch_bounds__(Tuning::shape(kSize).threads(), Tuning::blocks_per_sm(kSize, kChunks))
    sm80_int8_mma_kernel(const Arguments a) {
  constexpr Shape kShape = Tuning::shape(kSize);
  using Rows = GemmRows<kShape.columns(), kShape.rows()>;
  Gemm<Rows, kBits, kChunks, kBlocks, kOffsets, kSize>(a, Rows(a)).run();
}

template <int kBits, int kChunks, Blocks kBlocks, bool kOffsets, Size kSize>
void launch_kernel(const Arguments& a, cudaStream_t stream) {
  constexpr Shape kShape = Tuning::shape(kSize);
  using Kernel = Gemm<GemmRows<kShape.columns(), kShape.rows()>, kBits, kChunks, kBlocks, kOffsets, kSize>;
  launch("sm80_int8_mma", sm80_int8_mma_kernel<kBits, kChunks, kBlocks, kOffsets, kSize>,
         {dim3(static_cast<unsigned>(ceil_div(a.w.n, kShape.columns())),
               static_cast<unsigned>(ceil_div(a.x.rows, kShape.rows()))),
          dim3(static_cast<unsigned>(kShape.threads())), Kernel::kSharedBytes},
         stream, a);
}

template <int kBits, bool kOffsets, Size kSize>
void launch_whole(const Arguments& a, cudaStream_t stream) {
  switch (a.x.padded_block) {
    case 32:
      return launch_kernel<kBits, 1, Blocks::whole, kOffsets, kSize>(a, stream);
    case 64:
      return launch_kernel<kBits, 2, Blocks::whole, kOffsets, kSize>(a, stream);
    default:
      return launch_kernel<kBits, 4, Blocks::whole, kOffsets, kSize>(a, stream);
  }
}

bool whole_blocks(const Arguments& a) {
  const std::int64_t length = a.x.padded_block;
  return !a.w.sums && (length == 32 || length == 64 || length == 128);
}

template <int kBits, Size kSize>
void launch_size(const Arguments& a, cudaStream_t stream) {
  if (!whole_blocks(a))
    launch_kernel<kBits, 1, Blocks::part, true, kSize>(a, stream);
  else if (a.w.offsets)
    launch_whole<kBits, true, kSize>(a, stream);
  else
    launch_whole<kBits, false, kSize>(a, stream);
}

template <int kBits>
void launch_bits(const Arguments& a, cudaStream_t stream) {
  constexpr Shape kLarge = Tuning::shape(Size::large);
  if (ceil_div(a.w.n, kLarge.columns()) * ceil_div(a.x.rows, kLarge.rows()) >= a.enough_tiles)
    launch_size<kBits, Size::large>(a, stream);
  else
    launch_size<kBits, Size::small>(a, stream);
}

}  // namespace

void run(const Arguments& a, cudaStream_t stream) {
  if (a.w.bits == 8)
    launch_bits<8>(a, stream);
  else
    launch_bits<4>(a, stream);
}

}  // namespace qcore::sm80_int8_mma
