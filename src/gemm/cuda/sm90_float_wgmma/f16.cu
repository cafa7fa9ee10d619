#include "gemm/cuda/sm90_float_wgmma/gemm.cuh"

namespace qcore::sm90_float_wgmma {

void run_f16(const Arguments& arguments, cudaStream_t stream) { run<ptx::Half::f16>(arguments, stream); }

}  // namespace qcore::sm90_float_wgmma
