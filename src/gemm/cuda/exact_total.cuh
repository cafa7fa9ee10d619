#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "numerics/block_scale.h"

namespace qcore {

// A row of activations in 16 bits: the sum of `planes` values that lie plane_units units of 16 bytes apart.
struct ExactRow {
  const uint4* values;
  DType dtype;  // f16 or bf16
  int planes;
  std::int64_t plane_units;
};

// Adds the products of a row and of column n of the weight by the definition, weight after weight: for sums of the
// tensor cores that are not finite. `matrix` is the panel; of a convolution's weight panel * taps + tap.
__device__ inline float add_exact_tap(const DeviceWeight& w, const ExactRow& x, std::int64_t matrix, std::int64_t n,
                                      float total) {
  const std::int64_t panel = n / PackedLayout::kPanelRows, step_k = w.bits == 8 ? 4 : 8;
  const int column = static_cast<int>(n % PackedLayout::kPanelRows);
  for (std::int64_t p = 0; p < w.blocks; ++p) {
    const std::int64_t at = w.parameter_index(panel, p, column), length = w.block_length(p);
    float sum = 0.0f;
    for (std::int64_t i = 0; i < length; ++i) {
      float value = 0.0f;
      for (int plane = 0; plane < x.planes; ++plane)
        value += load_float(x.values + plane * x.plane_units, x.dtype, p * w.block_size + i);
      const std::int64_t step = matrix * w.steps + p * w.steps_per_block + i / step_k;
      const int shift = static_cast<int>(8 * (i % 4) + i % step_k / 4 * 4);
      const std::uint32_t word = w.words[step * PackedLayout::kPanelRows + column];
      const int code = static_cast<int>(word >> shift & ((1u << w.bits) - 1)) - (1 << (w.bits - 1));
      sum = numerics::fma_once(value, numerics::decode(code, w.scales[at], w.offsets ? w.offsets[at] : 0.0f), sum);
    }
    total += sum;
  }
  return total;
}

}  // namespace qcore
