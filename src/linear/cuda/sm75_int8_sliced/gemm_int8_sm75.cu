#include "linear/cuda/sm75_int8_sliced/gemm_int8_cutlass.cuh"

namespace qcore {

void gemm_int8_sm75(const Int8Gemm& gemm, cudaStream_t stream) {
  run_cutlass<cutlass::arch::Sm75, cutlass::gemm::GemmShape<8, 8, 16>, 2>("gemm_int8_sm75", gemm, stream);
}

}  // namespace qcore
