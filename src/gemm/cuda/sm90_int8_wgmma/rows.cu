#include "gemm/cuda/sm90_int8_wgmma/gemm.cuh"

namespace qcore::sm90_int8_wgmma {

void run_rows(const RowArguments& a, cudaStream_t stream) { run<GemmRows>(a, stream); }

}  // namespace qcore::sm90_int8_wgmma
