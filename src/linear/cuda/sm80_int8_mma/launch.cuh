#pragma once

#include "gemm/cuda/sm80_int8_mma/stage.cuh"

// Integer activations and many rows, in one launch: products of a block of k stay in registers and are promoted into
// fp32 totals there, block after block, with the operations and in the order of the reference.
namespace qcore::sm80_int8_mma {

// y = act(x W^T + bias). Needs sm_80.
void run(const Arguments& arguments, cudaStream_t stream);

}  // namespace qcore::sm80_int8_mma
