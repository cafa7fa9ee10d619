#pragma once

#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_launch.cuh"

// Steps of k that are spread over all thread blocks, where whole tiles would leave some of them idle in the last round:
// the tiles of the last round and a half are one run of steps, tile after tile, of which every thread block takes an
// equal part, from its end on. The end of the part may be the beginning of a tile, whose totals the thread block leaves
// to those behind it; the beginning of the part may be the end of a tile, which it completes with what others left. So
// a thread block waits only for those in front of it, which have started earlier, and seldom for long: they compute
// first what it waits for.
namespace qcore {

// Where thread blocks leave totals: each thread some floats, and each warp a flag.
struct SpreadTotals {
  float4* totals;
  std::uint64_t* flags;
  std::uint64_t token;  // of a flag whose totals are there: nothing else in memory has this value
};

// What a thread block does of the run.
struct SpreadPart {
  struct Piece {
    int tile, first_step, last_step;
    int first_leaving;  // of the thread blocks that left totals of the tile; the last is the one in front of this one
  };
  static constexpr int kMaxPieces = 4;
  Piece pieces[kMaxPieces];  // fewer than two tiles and their neighbors'; behind the last one tile is -1

  // `tiles` from `first_tile` on, of so many steps; there are at least as many steps as thread blocks.
  __device__ void set(int first_tile, int tiles, int steps, int block, int blocks) {
    const std::int64_t all = static_cast<std::int64_t>(tiles) * steps;
    const auto begin_of = [&](int of) { return static_cast<int>(all * of / blocks); };
    const int begin = begin_of(block);
    int end = begin_of(block + 1);
#pragma unroll 1
    for (Piece& piece : pieces) {
      if (end <= begin) {
        piece.tile = -1;
        continue;
      }
      const int tile = (end - 1) / steps, start = tile * steps;
      piece = {first_tile + tile, begin > start ? begin - start : 0, end - start, block};
      while (begin_of(piece.first_leaving) > start) --piece.first_leaving;
      end = start;
    }
  }
};

// Leaves a warp's totals. All lanes call.
template <int kCount>
__device__ __forceinline__ void leave_totals(const SpreadTotals& to, int warp, int warps,
                                             const float (&totals)[kCount]) {
  static_assert(kCount % 4 == 0, "16 bytes at a time");
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float4* fours = to.totals + (static_cast<std::int64_t>(blockIdx.x) * (kCount / 4) * warps + warp) * kWarpSize + lane;
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i)
    fours[i * warps * kWarpSize] = {totals[4 * i], totals[4 * i + 1], totals[4 * i + 2], totals[4 * i + 3]};
  __syncwarp();
  if (lane == 0) ptx::raise_flag(to.flags + blockIdx.x * warps + warp, to.token);
}

// Calls take(i, four) for the totals 4*i ... that the same warp of another thread block left.
template <int kCount, class Take>
__device__ __forceinline__ void take_totals(const SpreadTotals& from, int block, int warp, int warps, Take&& take) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const float4* fours =
      from.totals + (static_cast<std::int64_t>(block) * (kCount / 4) * warps + warp) * kWarpSize + lane;
  std::uint64_t* flag = from.flags + block * warps + warp;
  ptx::wait_for_flag(flag, from.token);
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) take(i, ptx::load_of_others(fours + i * warps * kWarpSize));
  __syncwarp();
  // A graph that runs again has the same token.
  if (lane == 0) *flag = 0;
}

}  // namespace qcore
