#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <random>

#include "gemm/cuda/spread_steps.cuh"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

// The choice between whole tiles and spread steps (gemm/cuda/spread_steps.cuh), and the memory that the latter need.
namespace qcore {

// How long a thread block works on a tile of one size, in units of 10 ns.
struct TileTimes {
  std::int64_t step, tile;  // for each step of k, and for each tile beside its steps
  std::int64_t totals;      // to store and to load totals

  // Returns the time of all tiles, computed whole in rounds over the thread blocks.
  std::int64_t whole(std::int64_t tiles, std::int64_t steps, std::int64_t blocks) const {
    return ceil_div(tiles, blocks) * (steps * step + tile);
  }
  // Returns their time if the steps of the last two rounds are spread.
  std::int64_t spread(std::int64_t tiles, std::int64_t steps, std::int64_t blocks) const {
    return tiles * steps * step / blocks + ceil_div(tiles, blocks) * tile + totals;
  }
};

// Whether 32 bits are enough for what thread blocks compute of their parts (SpreadPart::set).
inline bool can_spread(std::int64_t steps, std::int64_t blocks) {
  return steps <= std::numeric_limits<std::uint32_t>::max() / (2 * blocks * blocks);
}

// Whether spread steps may be worth it: not if rounds are full, or so many that the last one hardly counts. Thread
// blocks in the middle of different tiles want other k of x at the same time, which has to fit in the second-level
// cache: 4096 rows of 11008 took 668 instead of 589 us.
inline bool may_spread(std::int64_t tiles, std::int64_t blocks, std::int64_t x_bytes) {
  constexpr std::int64_t kCache = 40 << 20;
  return tiles % blocks != 0 && tiles / blocks < 64 && x_bytes <= kCache;
}

// Totals and flags of the thread blocks of one launch.
class SpreadScratch {
 public:
  // Each thread block has `warps` warps, and leaves up to `floats` totals.
  SpreadScratch(ScratchPlan& plan, std::int64_t blocks, std::int64_t floats, int warps)
      : totals_(plan.add<float4>(blocks * floats / 4)), flags_(plan.add<std::uint64_t>(blocks * warps)) {}

  SpreadTotals totals(const CudaScratch& scratch) const { return {scratch[totals_], scratch[flags_], new_token()}; }

 private:
  // A number that no flag in memory has by chance: of 64 bits, another one for each call.
  static std::uint64_t new_token() {
    static std::atomic<std::uint64_t> calls{(std::uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
    std::uint64_t bits = calls.fetch_add(0x9e3779b97f4a7c15u, std::memory_order_relaxed);
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return std::max<std::uint64_t>(bits ^ bits >> 31, 1);
  }

  ScratchSlot<float4> totals_;
  ScratchSlot<std::uint64_t> flags_;
};

}  // namespace qcore
