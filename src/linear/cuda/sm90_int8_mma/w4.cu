#include "linear/cuda/sm90_int8_mma/gemm.cuh"

namespace qcore::sm90_int8_mma {

void run_w4(const Arguments& a, cudaStream_t stream) { launch_blocks<4>(a, stream); }

}  // namespace qcore::sm90_int8_mma
