#pragma once

#include "conv2d/cpu/vtable.h"
#include "simd/unroll.h"

namespace qcore {
namespace {

// Picks the instance for the tile's bits, pixels (an even number) and panels.
template <template <int, int> class Tile8, template <int, int> class Tile4, int MaxResults, int MaxPanels>
void run_conv_tile(const ConvTileArguments& arguments) {
  unroll<MaxResults / 2>([&](auto pairs) QCORE_UNROLLED {
    constexpr int kResults = 2 * (pairs.value + 1);
    if (arguments.results != kResults) return;
    unroll<MaxPanels>([&](auto panels) QCORE_UNROLLED {
      if (arguments.panels != panels.value + 1) return;
      if (arguments.layout->bits == 8)
        Tile8<kResults, panels.value + 1>::run(arguments);
      else
        Tile4<kResults, panels.value + 1>::run(arguments);
    });
  });
}

}  // namespace
}  // namespace qcore
