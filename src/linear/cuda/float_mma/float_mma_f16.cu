#include "linear/cuda/float_mma/float_mma_launch.cuh"

namespace qcore::float_mma {

void run_f16(const Arguments& a, cudaStream_t stream) { launch_weight<ptx::Half::f16, 1>(a, stream); }

}  // namespace qcore::float_mma
