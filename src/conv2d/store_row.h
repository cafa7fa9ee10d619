#pragma once

#include "simd/tile_rows.h"

namespace qcore {
namespace {

// As Rows::store_row, for rows that the tile has finished but for their dtype, bf16 by vectors too.
template <class V>
void store_finished_row(const float* values, std::int64_t columns, const OutputRow& row) {
  std::int64_t n = 0;
  OutputRow rest = row;
  if (row.dtype != kF32 && row.dtype != kF16) {
    auto* out = static_cast<std::uint16_t*>(row.data);
    for (; n + V::kLanes <= columns; n += V::kLanes) V::store_bfloat(out + n, V::load(values + n));
    rest.data = out + n;
  }
  Rows<V>::store_row(values + n, columns - n, rest);
}

}  // namespace
}  // namespace qcore
