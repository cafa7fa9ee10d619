#pragma once

#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_launch.cuh"

// Spreads steps of k over all thread blocks, where whole tiles would leave some of them idle in the last round. The
// tiles of the last two rounds, of which the second is not full, are one run of steps, tile after tile. Every thread
// block computes an equal part of the run, from the end of its part to the beginning. Where its part ends within a
// tile, it stores the totals for a thread block with a higher number; where its part begins within a tile, it loads the
// totals that thread blocks with lower numbers stored, and completes the tile. So a thread block waits only for lower
// numbers, which start earlier, and seldom for long, because they compute first what it waits for.
namespace qcore {

// Memory for totals of tiles that several thread blocks share: some floats for each thread, and a flag for each warp.
struct SpreadTotals {
  float4* totals;
  std::uint64_t* flags;
  std::uint64_t
      token;  // the value of a flag whose totals are stored; 64 random bits, so that memory need not be cleared
};

// Returns how many tiles thread blocks compute whole, before the run of spread steps begins.
inline unsigned whole_tiles(unsigned tiles, unsigned blocks) {
  const unsigned rounds = tiles / blocks;
  return rounds > 1 ? (rounds - 1) * blocks : 0;
}

// The pieces of tiles that make up a thread block's part of the run.
struct SpreadPart {
  struct Piece {
    int tile, first_step, last_step;
    int first_leaving;  // of the thread blocks that left totals of the tile; the last is the one in front of this one
  };
  static constexpr int kMaxPieces = 4;
  Piece pieces[kMaxPieces];  // fewer than two tiles and their neighbors'; behind the last one tile is -1

  // `tiles` from `first_tile` on, of so many steps; there are at least as many as thread blocks, and 32 bits are
  // enough for their product with twice the square of the number of thread blocks.
  __device__ void set(int first_tile, int tiles, int steps, int block, int blocks) {
    const auto all = static_cast<unsigned>(tiles * steps);
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
