#pragma once

#include "gemm/cpu/expand.h"
#include "gemm/cpu/tile_rows.h"
#include "gemm/cpu/vtable.h"
#include "simd/unroll.h"

namespace qcore {
namespace {

// Picks the instance for a tile's bits, rows and panels, the most rows first: most tiles have them. Of sizes with more
// than MaxProducts rows times panels there is none.
template <class Arguments, template <int, int> class Tile8, template <int, int> class Tile4, int MaxRows, int MaxPanels,
          int MaxProducts>
void run_tile_of_size(const Arguments& arguments) {
  unroll<MaxRows>([&](auto row) QCORE_UNROLLED {
    constexpr int kRows = MaxRows - row.value;
    if (arguments.rows != kRows) return;
    unroll<MaxPanels>([&](auto panel) QCORE_UNROLLED {
      constexpr int kPanels = panel.value + 1;
      if constexpr (kRows * kPanels <= MaxProducts) {
        if (arguments.panels != kPanels) return;
        if (arguments.layout->bits == 8)
          Tile8<kRows, kPanels>::run(arguments);
        else
          Tile4<kRows, kPanels>::run(arguments);
      }
    });
  });
}

template <class V>
constexpr RowFunctions row_functions() {
  return {Rows<V>::widen, Transpose<V>::run, Rows<V>::store_row, Expand<V>::codes, Expand<V>::parameters};
}

// Returns one instruction set's kernels. Tiles has
//   V                          the vector set
//   kBytesPerCode, pack        of activations
//   W8<rows, panels>, W4       tiles for weights of 8 and of 4 bits
//   decode, depthwise_weights  as in BlockKernels, or null
//   Encoded                    its tile of an encoded weight
template <class Tiles, int MaxRows, int MaxPanels, int MaxProducts>
constexpr BlockKernels block_kernels(const RowFunctions& rows) {
  return {MaxRows,
          MaxPanels,
          MaxProducts,
          Tiles::kBytesPerCode,
          &rows,
          Tiles::pack,
          run_tile_of_size<BlockTileArguments, Tiles::template W8, Tiles::template W4, MaxRows, MaxPanels, MaxProducts>,
          Tiles::Encoded::tile,
          Tiles::Encoded::kRows,
          Tiles::Encoded::kPanels,
          Tiles::kLooksUpNibbles,
          Tiles::kIntegerRows,
          Tiles::decode,
          Tiles::depthwise_weights};
}

// Members that most of them leave out.
struct NoEncodedTile {
  static constexpr decltype(BlockKernels::encoded_tile) tile = nullptr;
  static constexpr int kRows = 0, kPanels = 0;
};

struct PlainTiles {
  using Encoded = NoEncodedTile;
  static constexpr bool kLooksUpNibbles = false;
  static constexpr int kIntegerRows = 0;
  static constexpr decltype(BlockKernels::decode) decode = nullptr;
  static constexpr decltype(BlockKernels::depthwise_weights) depthwise_weights = nullptr;
};

}  // namespace
}  // namespace qcore
