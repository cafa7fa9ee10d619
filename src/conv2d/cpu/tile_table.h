#pragma once

#include "conv2d/cpu/vtable.h"
#include "gemm/cpu/tile_rows.h"
#include "gemm/cpu/tile_size.h"
#include "gemm/cpu/transpose.h"

namespace qcore {
namespace {

// Returns one instruction set's kernels: tiles for weights of 8 and of 4 bits, what packs pixels for them, and for
// depthwise tiles what prepares the weights. Tiles have even numbers of results.
template <class V, template <int, int> class Tile8, template <int, int> class Tile4, int MaxResults, int MaxPanels>
constexpr ConvKernels conv_kernels(int bytes_per_code, decltype(ConvKernels::pack) pack,
                                   decltype(ConvKernels::weights) weights = nullptr) {
  return {MaxResults,
          MaxPanels,
          bytes_per_code,
          Rows<V>::widen,
          Transpose<V>::run,
          pack,
          run_tile_of_size<ConvTileArguments, Tile8, Tile4, MaxResults, MaxPanels, MaxResults * MaxPanels, 2>,
          weights,
          Rows<V>::store_row};
}

}  // namespace
}  // namespace qcore
