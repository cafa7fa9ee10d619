#pragma once

#include "gemm/cpu/tile_rows.h"
#include "gemm/cpu/tile_size.h"
#include "linear/cpu/vtable.h"

namespace qcore {
namespace {

// Returns one instruction set's kernels: tiles for weights of 8 and of 4 bits, and what packs and decodes for them.
template <class V, template <int, int> class Tile8, template <int, int> class Tile4, int MaxRows, int MaxPanels,
          int MaxProducts>
constexpr TileKernels tile_kernels(int bytes_per_code, decltype(TileKernels::pack_row) pack_row,
                                   decltype(TileKernels::decode) decode = nullptr) {
  return {MaxRows,
          MaxPanels,
          MaxProducts,
          bytes_per_code,
          Rows<V>::widen,
          pack_row,
          run_tile_of_size<TileArguments, Tile8, Tile4, MaxRows, MaxPanels, MaxProducts>,
          decode,
          Rows<V>::store_row};
}

}  // namespace
}  // namespace qcore
