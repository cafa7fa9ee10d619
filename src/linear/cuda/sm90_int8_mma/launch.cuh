#pragma once

#include "gemm/cuda/sm90_int8_mma/arguments.cuh"

namespace qcore::sm90_int8_mma {

// y = act(x W^T + bias). Needs sm_90.
void run_w4(const Arguments& arguments, cudaStream_t stream);
void run_w8(const Arguments& arguments, cudaStream_t stream);

}  // namespace qcore::sm90_int8_mma
