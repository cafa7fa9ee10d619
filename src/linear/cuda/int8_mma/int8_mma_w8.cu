#include "linear/cuda/int8_mma/int8_mma_gemm.cuh"

namespace qcore::int8_mma {

void run_w8(const Arguments& a, cudaStream_t stream) { launch_blocks<8>(a, stream); }

}  // namespace qcore::int8_mma
