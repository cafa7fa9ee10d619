#pragma once

#include "gemm/cuda/sm90_int8_wgmma/arguments.cuh"

namespace qcore::sm90_int8_wgmma {

// y = act(x W^T + bias). Needs sm_90a.
void run(const Arguments& arguments, cudaStream_t stream);

}  // namespace qcore::sm90_int8_wgmma
