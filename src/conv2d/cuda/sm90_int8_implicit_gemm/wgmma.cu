#include "conv2d/cuda/sm90_int8_implicit_gemm/launch.cuh"
#include "gemm/cuda/sm90_int8_wgmma/gemm.cuh"

namespace qcore::sm90_int8_implicit_gemm {

void run_wgmma(const sm90_int8_wgmma::WindowArguments& a, cudaStream_t stream) {
  sm90_int8_wgmma::launch_bits<sm90_int8_wgmma::Im2colRows>(a, stream);
}

}  // namespace qcore::sm90_int8_implicit_gemm
