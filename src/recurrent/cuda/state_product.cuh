#pragma once

#include <type_traits>

#include "recurrent/cuda/byte_product.cuh"
#include "recurrent/cuda/device_run.cuh"
#include "recurrent/cuda/persistent_plan.h"
#include "runtime/cuda/cuda_warp.cuh"

// R h of the channels of a thread block, by warps that share tiles and k among them: each leaves its sums in shared
// memory.
namespace qcore {

// Sums of products of single planes stay below 2^29 where lanes of 32 bits are chosen for the cell.
template <int kWeightPlanes, int kStatePlanes, bool kAnyFormat>
using StateSum = std::conditional_t<kWeightPlanes + kStatePlanes == 2 && !kAnyFormat, std::int32_t, std::int64_t>;

// Sums of [slice, tile, column] for kPartialRows rows, of which 16 are used.
template <class Sum>
struct Partials {
  Sum* sums;
  int tiles, slices, columns;  // columns: 8 or 16
};

// Part of the product that a warp computes at a time.
struct StateUnit {
  int tile, slice, begin, end;  // steps of 64 k
};

template <class Sum>
__device__ __forceinline__ StateUnit unit_at(int unit, int steps, const Partials<Sum>& to) {
  const int tile = unit % to.tiles, slice = unit / to.tiles;
  return {tile, slice, slice * steps / to.slices, (slice + 1) * steps / to.slices};
}

// kLong: of more k than a sum in int32 takes.
template <int kWeightPlanes, int kInputPlanes, int kColumns, bool kLong, class Sum>
__device__ __forceinline__ void multiply_state(const ByteOperands& all, const StateUnit& unit,
                                               const Partials<Sum>& to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  ByteOperands from = all;
  from.weights += unit.tile * kWeightPlanes * static_cast<std::int64_t>(all.steps) * 64;
  Sum totals[kColumns][4] = {};
  for (int begin = unit.begin; begin < unit.end; begin += kMaxSumSteps) {
    ByteProduct<kWeightPlanes, kInputPlanes, 1, kColumns> product;
    product.clear();
    product.add(from, begin, kLong && begin + kMaxSumSteps < unit.end ? begin + kMaxSumSteps : unit.end);
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 4; ++i) totals[column][i] += static_cast<Sum>(product.total(0, column, i));
    if constexpr (!kLong) break;
  }
  const int first = (unit.slice * to.tiles + unit.tile) * to.columns;
#pragma unroll
  for (int column = 0; column < kColumns; ++column)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to.sums[(first + 8 * column + fragment_column(lane, i)) * kPartialRows + fragment_row(lane, i)] =
          totals[column][i];
}

// Adds the partial sums of all gates of a row, whose tiles follow each other. All slices are loaded at once.
template <int kGates, class Sum>
__device__ __forceinline__ void sum_partials(const Partials<Sum>& from, int first_tile, int column, int row,
                                             Sum (&sums)[kGates]) {
  const Sum* at = from.sums + (first_tile * from.columns + column) * kPartialRows + row;
  const int gate_apart = from.columns * kPartialRows, slice_apart = from.tiles * gate_apart;
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) sums[gate] = at[gate * gate_apart];
#pragma unroll
  for (int slice = 1; slice < kMaxSlices; ++slice) {
    if (slice >= from.slices) continue;
    at += slice_apart;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) sums[gate] += at[gate * gate_apart];
  }
}

}  // namespace qcore
