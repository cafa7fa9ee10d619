#include "linear/cuda/int8_mma/int8_mma_gemm.cuh"

namespace qcore::int8_mma {

void run_w4(const Arguments& a, cudaStream_t stream) { launch_blocks<4>(a, stream); }

}  // namespace qcore::int8_mma
