#include "conv2d/cuda/sm80_float_implicit_gemm/instances.cuh"

namespace qcore::sm80_float_implicit_gemm {

void run_f32(const Arguments& a, cudaStream_t stream) { launch_weight<Half::bf16, 3>(a, stream); }

}  // namespace qcore::sm80_float_implicit_gemm
