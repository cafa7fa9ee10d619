#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "runtime/cuda/ptx_half.cuh"

namespace qcore {

// Stores four neighbors of y, `at` elements from its data, which is a multiple of their size.
__device__ __forceinline__ void store_neighbors(const RowView& y, std::int64_t at, const float (&four)[4]) {
  void* data = const_cast<void*>(y.data);
  if (y.dtype == DType::f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + at) = make_float4(four[0], four[1], four[2], four[3]);
    return;
  }
  uint2 words;
  if (y.dtype == DType::f16)
    words = {ptx::pack_pair<ptx::Half::f16>(four[0], four[1]), ptx::pack_pair<ptx::Half::f16>(four[2], four[3])};
  else
    words = {ptx::pack_pair<ptx::Half::bf16>(four[0], four[1]), ptx::pack_pair<ptx::Half::bf16>(four[2], four[3])};
  *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(data) + at) = words;
}

// Applies bias, activation and rounding to columns n .. n + 3 of a row, as far as they are before `end`; `together` if
// four of them are one aligned store. `row_offset` is that of y.
__device__ __forceinline__ void store_four(const DeviceOutput& out, std::int64_t row_offset, std::int64_t n,
                                           std::int64_t end, bool together, const float (&totals)[4]) {
  // The activation stands before the two ways to store, because its code is long.
  const bool all = n + 4 <= end;
  float y[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    y[i] = totals[i];
    if (out.bias && (all || n + i < end)) y[i] += load_float(out.bias, out.bias_dtype, (n + i) * out.bias_stride);
    y[i] = activate(y[i], out.activation);
  }
  if (!together || !all) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (n + i < end)
        store_float(const_cast<void*>(out.y.data), out.y.dtype, row_offset + (n + i) * out.y.column_stride, y[i]);
    return;
  }
  store_neighbors(out.y, row_offset + n, y);
}

}  // namespace qcore
