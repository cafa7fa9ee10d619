#include "conv2d/cuda/sm90_int8_implicit_gemm/launch.cuh"
#include "gemm/cuda/sm90_int8_mma/gemm.cuh"

namespace qcore::sm90_int8_implicit_gemm {

void run_mma_w4(const sm90_int8_mma::WindowArguments& a, cudaStream_t stream) {
  sm90_int8_mma::launch_blocks<sm90_int8_mma::Im2colRows, 4>(a, stream);
}

}  // namespace qcore::sm90_int8_implicit_gemm
