#pragma once

#include <algorithm>

#include "formats/packed_weight.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

// The blocks of a packed weight, in parallel.
namespace qcore {

// Calls visit(row, p, tap) for every block, in tasks of the rows of a panel, which share cache lines.
template <class Visit>
void for_each_block(const PackedLayout& layout, const Visit& visit) {
  constexpr std::int64_t kTaskElements = 4096;
  if (layout.k == 0 || layout.taps == 0) return;
  const std::int64_t longest = layout.block_length(0) * layout.taps;
  const std::int64_t together = std::max<std::int64_t>(1, kTaskElements / longest);
  const std::int64_t parts = ceil_div(layout.blocks(), together);
  parallel_for(layout.panels() * parts, [&](std::int64_t task) {
    const std::int64_t first = task / parts * PackedLayout::kPanelRows, begin = task % parts * together;
    const std::int64_t rows = std::min(layout.n, first + PackedLayout::kPanelRows);
    const std::int64_t end = std::min(layout.blocks(), begin + together);
    for (std::int64_t row = first; row < rows; ++row)
      for (std::int64_t p = begin; p < end; ++p)
        for (std::int64_t tap = 0; tap < layout.taps; ++tap) visit(row, p, tap);
  });
}

}  // namespace qcore
