#include "linear/cuda/sm80_float_mma/instances.cuh"

namespace qcore::sm80_float_mma {

void run_bf16(const Arguments& a, cudaStream_t stream) { launch_weight<ptx::Half::bf16, 1>(a, stream); }

}  // namespace qcore::sm80_float_mma
