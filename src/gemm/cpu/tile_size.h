#pragma once

#include "formats/packed_layout.h"
#include "simd/unroll.h"

namespace qcore {
namespace {

// Picks the instance for a tile's bits, rows (a multiple of RowStep) and panels. Of sizes with more than MaxProducts
// rows times panels there is none.
template <class Arguments, template <int, int> class Tile8, template <int, int> class Tile4, int MaxRows, int MaxPanels,
          int MaxProducts = MaxRows * MaxPanels, int RowStep = 1>
void run_tile_of_size(const Arguments& arguments) {
  unroll<MaxRows / RowStep>([&](auto step) QCORE_UNROLLED {
    constexpr int kRows = RowStep * (step.value + 1);
    if (arguments.row_count() != kRows) return;
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

}  // namespace
}  // namespace qcore
