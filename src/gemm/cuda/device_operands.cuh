#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "formats/activate.h"
#include "formats/element.h"
#include "formats/packed_weight.h"
#include "formats/row_view.h"

// A weight and an output as kernels take them: plain values, passed by copy.
namespace qcore {

// See formats/packed_layout.h. What the layout would compute by division is here as numbers.
struct DeviceWeight {
  const std::uint32_t* words;  // [panels, taps, steps, 16]: 4 codes of one row, or 8 of 4 bits
  const float* scales;         // [panels, P, 16]
  const float* offsets;        // [panels, P, 16]; null for a symmetric weight
  const float* sums;           // [taps, panels, P, 16]; null unless the activations have offsets
  std::int64_t n, k;
  std::int64_t panels, blocks, block_size;
  std::int64_t steps, steps_per_block;
  int bits;
  std::int64_t taps;  // of a convolution's window; otherwise 1

  __host__ __device__ std::int64_t block_length(std::int64_t p) const {
    return k - p * block_size < block_size ? k - p * block_size : block_size;
  }
  __host__ __device__ std::int64_t block_steps(std::int64_t p) const {
    return p + 1 < blocks ? steps_per_block : steps - p * steps_per_block;
  }
  __host__ __device__ std::int64_t parameter_index(std::int64_t panel, std::int64_t p, int row) const {
    return (panel * blocks + p) * PackedLayout::kPanelRows + row;
  }
};

// Why int32 sums of int8 products do not take a weight's blocks, or null: 128 * 128 * block_size must be below 2^31.
inline const char* long_block_reason(const PackedLayout& layout) {
  constexpr std::int64_t kMaxExactBlock = 131071;
  const std::int64_t longest = layout.block_size < layout.k ? layout.block_size : layout.k;
  return longest > kMaxExactBlock ? "its int32 sums take blocks up to 131071" : nullptr;
}

inline DeviceWeight device_weight(const PackedWeight& weight) {
  const PackedLayout& layout = weight.layout;
  DeviceWeight w{};
  w.words = reinterpret_cast<const std::uint32_t*>(weight.codes);
  w.scales = static_cast<const float*>(weight.scales.data);
  w.offsets = static_cast<const float*>(weight.offsets.data);
  w.n = layout.n;
  w.k = layout.k;
  w.panels = layout.panels();
  w.blocks = layout.blocks();
  w.block_size = layout.block_size;
  w.steps = layout.steps();
  w.steps_per_block = (layout.block_size + layout.step_k() - 1) / layout.step_k();
  w.bits = layout.bits;
  w.taps = layout.taps;
  return w;
}

// Codes 4*quad .. 4*quad + 3 of block p as signed bytes, lowest first; zeros behind the block's end. `matrix` is the
// panel; of a convolution's weight panel * taps + tap.
__device__ __forceinline__ std::uint32_t load_codes(const DeviceWeight& w, std::int64_t matrix, std::int64_t p,
                                                    std::int64_t quad, int row) {
  const std::int64_t step = w.bits == 8 ? quad : quad / 2;
  if (step >= w.block_steps(p)) return 0;
  const std::int64_t first = matrix * w.steps + p * w.steps_per_block;
  const std::uint32_t word = w.words[(first + step) * PackedLayout::kPanelRows + row];
  // Flipping a byte's top bit subtracts 128. A nibble gets that bit first, so that subtracting 8 borrows from no
  // neighbor.
  constexpr std::uint32_t kTopBits = 0x80808080u;
  if (w.bits == 8) return word ^ kTopBits;
  const std::uint32_t nibbles = word >> (4 * (quad & 1)) & 0x0f0f0f0fu;
  return ((nibbles | kTopBits) - 0x08080808u) ^ kTopBits;
}

struct DeviceOutput {
  RowView y;         // [M, N]
  const void* bias;  // [N] or null
  DType bias_dtype;
  std::int64_t bias_stride;
  FusedActivation activation;
};

inline DeviceOutput device_output(const RowView& y, const TensorView& bias, const FusedActivation& activation) {
  return {y, bias.rank ? bias.data : nullptr, bias.dtype, bias.rank ? bias.strides[0] : 0, activation};
}

// Returns y, bias and activation of linear's problem.
template <class Problem>
DeviceOutput device_output(const Problem& problem) {
  return device_output(problem.y, problem.bias, problem.activation);
}

// Applies bias, activation and rounding to a column of y, as gemm/epilogue.h does on the CPU.
class Epilogue {
 public:
  // `bias_shift` is added to the bias's place, in elements.
  __device__ __forceinline__ Epilogue(const DeviceOutput& out, std::int64_t n, std::int64_t bias_shift = 0)
      : out_(out) {
    column_ = n * out.y.column_stride;
    if (out.bias) bias_ = load_float(out.bias, out.bias_dtype, bias_shift + n * out.bias_stride);
  }
  // `row_offset` is y.row_offset(m).
  __device__ __forceinline__ void store(std::int64_t row_offset, float y) const {
    if (out_.bias) y += bias_;
    store_float(const_cast<void*>(out_.y.data), out_.y.dtype, row_offset + column_, activate(y, out_.activation));
  }

 private:
  const DeviceOutput& out_;
  std::int64_t column_;
  float bias_ = 0.0f;
};

__device__ __forceinline__ void store_epilogue(const DeviceOutput& out, std::int64_t row_offset, std::int64_t n,
                                               float y) {
  Epilogue(out, n).store(row_offset, y);
}

}  // namespace qcore
