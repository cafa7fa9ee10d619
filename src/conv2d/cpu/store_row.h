#pragma once

#include "gemm/cpu/tile_rows.h"

namespace qcore {
namespace {

// As Rows::store_row, for rows that the tile has finished but for their dtype, bf16 by vectors too.
template <class V>
void store_finished_row(const float* values, std::int64_t columns, const OutputRow& row) {
  if (row.dtype == kF32 || row.dtype == kF16) return Rows<V>::store_row(values, columns, row);
  auto* out = static_cast<std::uint16_t*>(row.data);
  std::int64_t n = 0;
  for (; n + V::kLanes <= columns; n += V::kLanes) V::store_bfloat(out + n, V::load(values + n));
  for (; n < columns; ++n) out[n] = numerics::float_to_bfloat(values[n]);
}

}  // namespace
}  // namespace qcore
