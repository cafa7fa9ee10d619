#include "conv2d/cuda/sm80_float_implicit_gemm/instances.cuh"

namespace qcore::sm80_float_implicit_gemm {

void run_f16(const Arguments& a, cudaStream_t stream) { launch_weight<Half::f16, 1>(a, stream); }

}  // namespace qcore::sm80_float_implicit_gemm
