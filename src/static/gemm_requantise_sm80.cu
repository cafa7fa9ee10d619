#include "static/gemm_requantise_cutlass.cuh"

namespace qcore::static_gemm {

void gemm_requantise_sm80(const RequantisingGemm& gemm, cudaStream_t stream) {
  run_requantising<cutlass::arch::Sm80, cutlass::gemm::GemmShape<16, 8, 32>, 3>("gemm_requantise_sm80", gemm, stream);
}

}  // namespace qcore::static_gemm
