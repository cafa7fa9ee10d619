#include "linear/cuda/sm80_float_mma/instances.cuh"

namespace qcore::sm80_float_mma {

void run_f32(const Arguments& a, cudaStream_t stream) { launch_weight<ptx::Half::bf16, 3>(a, stream); }

}  // namespace qcore::sm80_float_mma
