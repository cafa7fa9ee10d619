#pragma once

#include "gemm/cuda/device_operands.cuh"

namespace qcore {

// Unpacks blocks first_block .. first_block + blocks - 1 to signed bytes:
//   codes [round_up(N, 16), blocks * padded_block], zeros behind each block's end. padded_block is a multiple of 16.
void unpack_weight(const DeviceWeight& w, std::int64_t first_block, std::int64_t blocks, std::int64_t padded_block,
                   std::int8_t* codes, cudaStream_t stream);

}  // namespace qcore
