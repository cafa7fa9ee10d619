#include "gemm/cuda/sm80_float_mma/launch.cuh"

namespace qcore::sm80_float_mma {

void run_f32(const Arguments& a, cudaStream_t stream) { launch_weight<GemmRows, Half::bf16, 3>(a, stream); }
void run_f32(const WindowArguments& a, cudaStream_t stream) { launch_weight<Im2colRows, Half::bf16, 3>(a, stream); }

}  // namespace qcore::sm80_float_mma
