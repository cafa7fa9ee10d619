#include "conv2d/cuda/implicit_gemm_float/implicit_gemm_float_launch.cuh"

namespace qcore::implicit_gemm_float {

void run_bf16(const Arguments& a, cudaStream_t stream) { launch_weight<Half::bf16, 1>(a, stream); }

}  // namespace qcore::implicit_gemm_float
