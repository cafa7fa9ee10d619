#include "linear/cuda/float_mma/float_mma_launch.cuh"

namespace qcore::float_mma {

void run_f32(const Arguments& a, cudaStream_t stream) { launch_weight<ptx::Half::bf16, 3>(a, stream); }

}  // namespace qcore::float_mma
