#include "gemm/cuda/sm90_int8_wgmma/gemm.cuh"
#include "linear/cuda/sm90_int8_wgmma/launch.cuh"

namespace qcore::sm90_int8_wgmma {

void run(const Arguments& a, cudaStream_t stream) { launch_bits<GemmRows>(a, stream); }

}  // namespace qcore::sm90_int8_wgmma
