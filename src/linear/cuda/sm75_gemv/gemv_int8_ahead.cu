#include "linear/cuda/sm75_gemv/gemv_int8_kernel.cuh"

namespace qcore::gemv {
namespace {

template <int kBits, int kBlockChunks>
__global__ void __launch_bounds__((kMaxWarps + kAdders) * kWarpSize, kResidentBlocks)
    gemv_int8_ahead_kernel(const __grid_constant__ Int8Arguments a) {
  Int8<kBits, kBlockChunks, false, true>(a).run();
}

template <int kBits>
void launch_blocks(const Int8Arguments& a, const LaunchShape& shape, cudaStream_t stream) {
  const auto kernel = a.w.block_size == 32   ? gemv_int8_ahead_kernel<kBits, 1>
                      : a.w.block_size == 64 ? gemv_int8_ahead_kernel<kBits, 2>
                                             : gemv_int8_ahead_kernel<kBits, 4>;
  launch("gemv_int8_ahead", kernel, shape, stream, a);
}

}  // namespace

void run_int8_ahead(const Int8Arguments& a, const LaunchShape& shape, cudaStream_t stream) {
  a.w.bits == 8 ? launch_blocks<8>(a, shape, stream) : launch_blocks<4>(a, shape, stream);
}

}  // namespace qcore::gemv
