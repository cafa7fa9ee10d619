#include "linear/cuda/sm75_int8_sliced/gemm_int8_cutlass.cuh"

namespace qcore {

void gemm_int8_sm80(const Int8Gemm& gemm, cudaStream_t stream) {
  run_cutlass<cutlass::arch::Sm80, cutlass::gemm::GemmShape<16, 8, 32>, 3>("gemm_int8_sm80", gemm, stream);
}

}  // namespace qcore
