#include <algorithm>

#include "linear/grouped/cuda/place_rows.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
constexpr std::int64_t kMostThreadBlocks = 64;

// Where experts begin, those without rows too; behind them the rows without an expert, and the end.
struct Begins {
  std::int64_t warp_sums[kWarps];
  std::int32_t rows[PlacedRows::kMaxExperts + 2], tiles[PlacedRows::kMaxExperts + 2];
};

// Returns the sum of the values of all threads in front of this one. By all threads.
__device__ std::int64_t sum_before(std::int64_t value, Begins& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  std::int64_t sum = value;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const std::int64_t before = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(distance));
    if (lane >= distance) sum += before;
  }
  if (lane == kWarpSize - 1) shared.warp_sums[warp] = sum;
  __syncthreads();
  for (int i = 0; i < warp; ++i) sum += shared.warp_sums[i];
  __syncthreads();
  return sum - value;
}

// A thread adds up the counts of some neighboring experts; then each has rows of its own to place.
__global__ void __launch_bounds__(kThreads) place_rows_kernel(const __grid_constant__ PlacedRows a) {
  auto& begins = block_shared<Begins>();
  const int experts = a.experts.experts, all = experts + 1;  // with the rows that have none
  const int each = (all + kThreads - 1) / kThreads, first = static_cast<int>(threadIdx.x) * each;
  const int end = first + each < all ? first + each : all;
  const std::int64_t all_rows = a.first_row + a.rows;
  // Sums of counts out of bounds could overflow.
  const auto count_of = [&](int expert) {
    const std::int64_t count = expert < experts ? a.experts[expert] : all_rows;
    return count < 0 ? 0 : count < all_rows ? count : all_rows;
  };
  const auto in_launch = [&](std::int64_t row) {
    row -= a.first_row;
    return row < 0 ? 0 : row < a.rows ? row : a.rows;
  };
  std::int64_t sum = 0;
  for (int expert = first; expert < end; ++expert) sum += count_of(expert);
  const std::int64_t rows_before = sum_before(sum, begins);
  // Calls of(expert, its first row, the number of its tiles).
  const auto for_each_expert = [&](auto&& of) {
    std::int64_t row = rows_before;
    for (int expert = first; expert < end; ++expert) {
      const std::int64_t begin = in_launch(row);
      row += count_of(expert);
      of(expert, begin, (in_launch(row) - begin + a.tile_rows - 1) / a.tile_rows);
    }
  };
  sum = 0;
  for_each_expert([&](int, std::int64_t, std::int64_t tiles) { sum += tiles; });
  std::int64_t tiles_before = sum_before(sum, begins);
  for_each_expert([&](int expert, std::int64_t begin, std::int64_t tiles) {
    begins.rows[expert] = static_cast<std::int32_t>(begin);
    begins.tiles[expert] = static_cast<std::int32_t>(tiles_before);
    tiles_before += tiles;
  });
  if (threadIdx.x == 0) begins.rows[all] = static_cast<std::int32_t>(a.rows);
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.count = begins.tiles[experts];

  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t from = static_cast<std::int64_t>(blockIdx.x) * kThreads; from < a.rows; from += stride) {
    const auto row = static_cast<std::int32_t>(from) + static_cast<std::int32_t>(threadIdx.x);
    if (row < a.rows) {
      int expert = 0;  // the last one that begins at the row or before it, of which one has rows
      for (int behind = all; behind - expert > 1;) {
        const int middle = (expert + behind) / 2;
        (begins.rows[middle] <= row ? expert : behind) = middle;
      }
      const int of_expert = row - begins.rows[expert], tile = begins.tiles[expert] + of_expert / a.tile_rows;
      a.places[row] = tile * a.tile_rows + of_expert % a.tile_rows;
      if (expert < experts && of_expert % a.tile_rows == 0) a.tiles[tile] = {expert, row, begins.rows[expert + 1]};
    }
    const int here = static_cast<int>(from), lost = begins.rows[experts] > here ? begins.rows[experts] : here;
    store_nan(a.out, a.first_row, {experts, lost, begins.rows[all]}, here + kThreads - lost, 0, a.experts.outputs);
  }
}

}  // namespace

void place_rows(const PlacedRows& rows, cudaStream_t stream) {
  const std::int64_t thread_blocks = std::min(ceil_div(rows.rows, kThreads), kMostThreadBlocks);
  launch("place_rows", place_rows_kernel, {dim3(static_cast<unsigned>(thread_blocks)), dim3(kThreads)}, stream, rows);
}

}  // namespace qcore
