#pragma once

#include "linear/cpu/vtable.h"
#include "simd/unroll.h"

namespace qcore {
namespace {

// Picks the instance for the tile's bits, rows and panels.
template <template <int, int> class Tile8, template <int, int> class Tile4, int MaxRows, int MaxPanels, int MaxProducts>
void run_tile_of_size(const TileArguments& arguments) {
  unroll<MaxRows>([&](auto r) QCORE_UNROLLED {
    if (arguments.rows.rows != r.value + 1) return;
    unroll<MaxPanels>([&](auto panels) QCORE_UNROLLED {
      if constexpr ((r.value + 1) * (panels.value + 1) <= MaxProducts) {
        if (arguments.panels != panels.value + 1) return;
        if (arguments.layout->bits == 8)
          Tile8<r.value + 1, panels.value + 1>::run(arguments);
        else
          Tile4<r.value + 1, panels.value + 1>::run(arguments);
      }
    });
  });
}

}  // namespace
}  // namespace qcore
