#pragma once

#include <algorithm>
#include <cstdint>

#include "gemm/cuda/device_operands.cuh"
#include "numerics/block_scale.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/memory.h"

// Rows of x that are sorted by expert: which expert a thread block computes for, and which of its rows. Only the device
// knows how many there are, so that a grid has tiles for the worst case, and each thread block finds its own.
namespace qcore {

// So many fit in a grid, with the tiles of the rows.
constexpr std::int64_t kMaxExperts = 1 << 14;

struct ExpertCounts {
  const void* counts = nullptr;  // [E]; null: all rows share one weight
  bool wide = false;             // int64, otherwise int32
  std::int64_t stride = 0;       // in elements
  int experts = 0;
  std::int64_t outputs = 0;      // N of one expert
  std::int64_t bias_stride = 0;  // from expert to expert, in elements

  __device__ std::int64_t operator[](std::int64_t expert) const {
    const std::int64_t at = expert * stride;
    return wide ? static_cast<const std::int64_t*>(counts)[at] : static_cast<const std::int32_t*>(counts)[at];
  }
  // Returns the most tiles of `tile_rows` that so many rows may need; those behind the last expert's count as
  // another's.
  std::int64_t most_tiles(std::int64_t rows, std::int64_t tile_rows) const {
    return std::min(rows, rows / tile_rows + experts + 1);
  }
};

// Rows [first, end) of a launch, and their expert; `experts` for those behind the last one's.
struct ExpertTile {
  int expert, first, end;
};

// Tiles of rows that were found before the launch, each at a multiple of its height in the rows of codes.
struct ExpertTiles {
  const ExpertTile* tiles = nullptr;  // null: all rows share one weight
  const std::int32_t* count = nullptr;
  std::int64_t panels = 0;       // of the weight, from expert to expert
  std::int64_t bias_stride = 0;  // in elements, likewise
};

// Finds the tile-th tile of a launch that computes `rows` rows from first_row on; an empty one if there are fewer. By
// whole warps, each on its own: that takes no shared memory and no barrier.
__device__ inline ExpertTile find_expert_tile(const ExpertCounts& experts, std::int64_t first_row, std::int64_t rows,
                                              int tile_rows, std::int64_t tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t all_rows = first_row + rows;
  const auto sum_to_lane = [&](std::int64_t value) {
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const std::int64_t before = __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(distance));
      if (lane >= distance) value += before;
    }
    return value;
  };
  const auto in_launch = [&](std::int64_t row) {
    row -= first_row;
    return row < 0 ? 0 : row < rows ? row : rows;
  };
  std::int64_t rows_before = 0, tiles_before = 0;
  for (int base = 0; base <= experts.experts; base += kWarpSize) {
    const int expert = base + lane;
    std::int64_t count = expert < experts.experts ? experts[expert] : expert == experts.experts ? all_rows : 0;
    // Sums of counts out of bounds could overflow.
    count = count < 0 ? 0 : count < all_rows ? count : all_rows;
    const std::int64_t end_row = rows_before + sum_to_lane(count);
    const std::int64_t begin = in_launch(end_row - count), end = in_launch(end_row);
    const std::int64_t tiles = (end - begin + tile_rows - 1) / tile_rows, end_tile = tiles_before + sum_to_lane(tiles);
    const std::int64_t own = tile - (end_tile - tiles);
    const int found = warp_min(own >= 0 && own < tiles ? lane : kWarpSize);
    if (found < kWarpSize)
      return {base + found, static_cast<int>(__shfl_sync(kAllLanes, begin + own * tile_rows, found)),
              static_cast<int>(__shfl_sync(kAllLanes, end, found))};
    rows_before = __shfl_sync(kAllLanes, end_row, kWarpSize - 1);
    tiles_before = __shfl_sync(kAllLanes, end_tile, kWarpSize - 1);
  }
  return {experts.experts, 0, 0};
}

// Returns the expert of one of few rows; `experts` if it has none. By whole warps: a lane adds up the counts of some
// neighboring experts.
__device__ inline int find_expert(const ExpertCounts& experts, int rows, int row) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, each = (experts.experts + kWarpSize - 1) / kWarpSize;
  const int first = lane * each, end = first + each < experts.experts ? first + each : experts.experts;
  // Sums of counts out of bounds could overflow.
  const auto count_of = [&](int expert) {
    const std::int64_t count = experts[expert];
    return static_cast<int>(count < 0 ? 0 : count < rows ? count : rows);
  };
  int sum = 0;
  for (int expert = first; expert < end; ++expert) sum += count_of(expert);
  int behind = sum;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const int before = __shfl_up_sync(kAllLanes, behind, static_cast<unsigned>(distance));
    if (lane >= distance) behind += before;
  }
  int found = experts.experts;
  if (row >= behind - sum && row < behind) {
    int left = row - (behind - sum);
    for (found = first; left >= count_of(found); ++found) left -= count_of(found);
  }
  return warp_min(found);
}

// Writes NaN to columns [first_column, end_column) of a tile without an expert. By all threads.
__device__ inline void store_nan(const DeviceOutput& out, std::int64_t first_row, const ExpertTile& tile, int tile_rows,
                                 std::int64_t first_column, std::int64_t end_column) {
  const int end = tile.end < tile.first + tile_rows ? tile.end : tile.first + tile_rows;
  for (int row = tile.first; row < end; ++row) {
    const std::int64_t at = out.y.row_offset(first_row + row);
    for (std::int64_t n = first_column + threadIdx.x; n < end_column; n += blockDim.x)
      store_float(const_cast<void*>(out.y.data), out.y.dtype, at + n * out.y.column_stride,
                  numerics::nan_block().scale);
  }
}

}  // namespace qcore
