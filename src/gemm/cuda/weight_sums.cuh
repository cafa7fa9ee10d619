#pragma once

#include "gemm/cuda/device_operands.cuh"

namespace qcore {

inline std::int64_t weight_sum_count(const DeviceWeight& w) {
  return w.taps * w.panels * w.blocks * PackedLayout::kPanelRows;
}

// Gives the weight the sum of each block's dequantized weights, in `sums` [taps, panels, P, 16], as
// PackedWeight::weight_sums() does.
void add_weight_sums(DeviceWeight& w, float* sums, cudaStream_t stream);

}  // namespace qcore
