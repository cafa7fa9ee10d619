#include "gemm/cuda/sm90_int8_mma/gemm.cuh"
#include "linear/cuda/sm90_int8_mma/launch.cuh"

namespace qcore::sm90_int8_mma {

void run_w8(const Arguments& a, cudaStream_t stream) { launch_blocks<GemmRows, 8>(a, stream); }

}  // namespace qcore::sm90_int8_mma
