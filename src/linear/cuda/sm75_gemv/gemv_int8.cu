#include "linear/cuda/sm75_gemv/gemv_int8_kernel.cuh"

namespace qcore::gemv {
namespace {

// With one block per row, more registers for loads of x under way are worth more than a second thread block.
template <int kBits, int kBlockChunks>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, kBlockChunks == 0 ? 1 : kResidentBlocks)
    gemv_int8_kernel(const __grid_constant__ Int8Arguments a) {
  Int8<kBits, kBlockChunks>(a).run();
}

template <int kBits>
void launch_blocks(const Int8Arguments& a, const LaunchShape& shape, cudaStream_t stream) {
  const auto kernel = a.one_block            ? gemv_int8_kernel<kBits, 0>
                      : a.w.block_size == 32 ? gemv_int8_kernel<kBits, 1>
                      : a.w.block_size == 64 ? gemv_int8_kernel<kBits, 2>
                                             : gemv_int8_kernel<kBits, 4>;
  launch("gemv_int8", kernel, shape, stream, a);
}

}  // namespace

void run_int8(const Int8Arguments& a, bool overlap, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(a.layout.weights.blocks)),
                    dim3(static_cast<unsigned>((a.warps + a.adders) * kWarpSize)),
                    static_cast<std::size_t>(a.layout.weights.bytes)};
  shape.overlap = overlap;
  if (a.adders) return run_int8_ahead(a, shape, stream);
  a.w.bits == 8 ? launch_blocks<8>(a, shape, stream) : launch_blocks<4>(a, shape, stream);
}

}  // namespace qcore::gemv
