#include "static/gemm_requantise_cutlass.cuh"

namespace qcore::static_gemm {

void gemm_requantise_sm75(const RequantisingGemm& gemm, cudaStream_t stream) {
  run_requantising<cutlass::arch::Sm75, cutlass::gemm::GemmShape<8, 8, 16>, 2>("gemm_requantise_sm75", gemm, stream);
}

}  // namespace qcore::static_gemm
