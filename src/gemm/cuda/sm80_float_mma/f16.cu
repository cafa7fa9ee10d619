#include "gemm/cuda/sm80_float_mma/launch.cuh"

namespace qcore::sm80_float_mma {

void run_f16(const Arguments& a, cudaStream_t stream) { launch_weight<GemmRows, Half::f16, 1>(a, stream); }
void run_f16(const WindowArguments& a, cudaStream_t stream) { launch_weight<Im2colRows, Half::f16, 1>(a, stream); }

}  // namespace qcore::sm80_float_mma
