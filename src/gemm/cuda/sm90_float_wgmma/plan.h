#pragma once

#include <algorithm>

#include "gemm/cuda/sm90_float_wgmma/arguments.cuh"
#include "gemm/cuda/spread_plan.h"
#include "runtime/memory.h"

// How a product of sm90_float_wgmma is shared out: the height of its tiles, and whether steps of k are spread.
namespace qcore::sm90_float_wgmma {

struct Plan {
  int parts;
  int spread;  // thread blocks, or 0
};

// The plan that is expected to take the least time, as measured on one H100 on 2026-11-26. `spread` 1 and 0 ask for
// spread steps or for whole tiles.
inline Plan plan(std::int64_t rows, std::int64_t x_bytes, const DeviceWeight& w, std::int64_t multiprocessors,
                 int spread) {
  constexpr TileTimes kTimes[] = {{}, {51, 220, 520}, {92, 250, 700}, {}, {156, 330, 1100}};
  const std::int64_t columns = ceil_div(w.n, Tuning::kColumns), steps = ceil_div(w.k, kStepK);
  Plan best{0, 0};
  std::int64_t least = 0;
  const auto consider = [&](Plan plan, std::int64_t time) {
    if (best.parts == 0 || time < least) best = plan, least = time;
  };
  for (int parts = Tuning::kMaxParts; parts > 0; parts /= 2) {
    if (!parts_fit(w, parts)) continue;
    const std::int64_t tiles = columns * ceil_div(rows, parts * kPartRows);
    const std::int64_t blocks = std::min(multiprocessors, tiles * steps);
    const bool can = can_spread(steps, blocks);
    if (spread <= 0 || !can) consider({parts, 0}, kTimes[parts].whole(tiles, steps, multiprocessors));
    if (can && (spread > 0 || (spread < 0 && may_spread(tiles, multiprocessors, x_bytes))))
      consider({parts, static_cast<int>(blocks)}, kTimes[parts].spread(tiles, steps, blocks));
  }
  return best;
}

// The memory of two launches, one after the other.
inline SpreadScratch spread_scratch(ScratchPlan& to, const Plan& first, const Plan& second) {
  return SpreadScratch(to, std::max(first.spread, second.spread),
                       std::max(first.parts, second.parts) * kPartRows * Tuning::kColumns,
                       Tuning::kColumns / static_cast<int>(PackedLayout::kPanelRows));
}

}  // namespace qcore::sm90_float_wgmma
