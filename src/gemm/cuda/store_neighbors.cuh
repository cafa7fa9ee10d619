#pragma once

#include "formats/row_view.h"
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

}  // namespace qcore
