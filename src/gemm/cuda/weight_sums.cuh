#pragma once

#include "gemm/cuda/device_operands.cuh"

namespace qcore {

// Writes the sum of each block's dequantized weights to sums [taps, panels, P, 16], as PackedWeight::weight_sums() does
// on the CPU.
void compute_weight_sums(const DeviceWeight& w, float* sums, cudaStream_t stream);

}  // namespace qcore
