#pragma once

#include "gemm/cuda/expert_tiles.cuh"

namespace qcore {

// Rows [first_row, first_row + rows) of a call, and where their codes go: every expert begins with a tile of its own,
// so that kernels for one weight find the rows of a tile together.
struct PlacedRows {
  static constexpr std::int64_t kMaxExperts = 1023;

  ExpertCounts experts;
  DeviceOutput out;
  std::int64_t first_row, rows;
  int tile_rows;
  std::int32_t* places;  // [rows], of each row's codes
  ExpertTile* tiles;     // [most_tiles()]; rows without an expert have none
  std::int32_t* count;   // of the tiles
};

// Finds all of it on the device. Rows without an expert become NaN.
void place_rows(const PlacedRows& rows, cudaStream_t stream);

}  // namespace qcore
