#pragma once

#include "gemm/cpu/tile_data.h"
#include "numerics/portable.h"

namespace qcore {
namespace {

// The scales or offsets of one vector of columns.
template <class V>
QCORE_NUMERIC typename V::Float load_parameters(const TileParameters& from, std::int64_t at) {
  return from.half ? V::load_half(static_cast<const std::uint16_t*>(from.data) + at)
                   : V::load(static_cast<const float*>(from.data) + at);
}

QCORE_NUMERIC void prefetch_parameters(const TileParameters& from, std::int64_t at) {
  __builtin_prefetch(static_cast<const char*>(from.data) + (from.half ? 2 : 4) * at, 0, 2);
}

}  // namespace
}  // namespace qcore
