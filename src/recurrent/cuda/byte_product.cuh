#pragma once

#include "recurrent/cuda/device_layer.h"
#include "runtime/cuda/ptx_bytes.cuh"

// Products of weights with inputs, both in planes of bytes (device_layer.h): a warp has rows of weights and columns of
// inputs.
namespace qcore {

// k of one sum in int32: 2 * 128 * 255 * k stays below 2^31.
constexpr int kMaxSumSteps = (1 << 15) / kStepK;

// Operands that a warp reads; the pointers are those of its lane.
struct ByteOperands {
  const uint4* weights;      // [tile, plane, step, 2] of 32 lanes
  int steps;                 // of 64 k, in a row
  const char* inputs;        // column lane / 4 of the first 8, byte 16 * (lane % 4)
  std::int64_t input_plane;  // bytes from plane to plane
  std::int64_t input_tile;   // bytes from 8 columns to the next 8
};

template <int kWeightPlanes, int kInputPlanes, int kTiles, int kColumns>
struct ByteProduct {
  static constexpr int kOrders = kWeightPlanes + kInputPlanes - 1;  // powers of 256, the highest first
  std::int32_t sums[kTiles][kColumns][kOrders][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kTiles * kColumns * kOrders * 4; ++i) (&sums[0][0][0][0])[i] = 0;
  }

  __device__ __forceinline__ void add(const ByteOperands& from, int begin, int end) {
#pragma unroll 1
    for (int step = begin; step < end; ++step) add_step(from, step);
  }

  // 64 k of a plane of one tile, of which the lane has both halves of rows, and of one column.
  __device__ __forceinline__ void add_words(const uint4 (&rows)[2], int plane,
                                            const std::uint32_t (&b)[kInputPlanes][4]) {
    static_assert(kTiles * kColumns == 1);
    multiply_planes(sums[0][0], rows, plane, b);
  }

  // Element i of the fragment.
  __device__ __forceinline__ std::int64_t total(int tile, int column, int i) const {
    std::int64_t sum = sums[tile][column][0][i];
#pragma unroll
    for (int order = 1; order < kOrders; ++order) sum = sum * 256 + sums[tile][column][order][i];
    return sum;
  }

 private:
  __device__ __forceinline__ void add_step(const ByteOperands& from, int step) {
    std::uint32_t b[kColumns][kInputPlanes][4];
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int plane = 0; plane < kInputPlanes; ++plane) {
        const uint4 words = *reinterpret_cast<const uint4*>(from.inputs + plane * from.input_plane +
                                                            column * from.input_tile + step * kStepK);
        b[column][plane][0] = words.x, b[column][plane][1] = words.y;
        b[column][plane][2] = words.z, b[column][plane][3] = words.w;
      }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int plane = 0; plane < kWeightPlanes; ++plane) {
        const uint4* rows =
            from.weights + (static_cast<std::int64_t>(tile * kWeightPlanes + plane) * from.steps + step) * 64;
        const uint4 halves[2] = {rows[0], rows[32]};
#pragma unroll
        for (int column = 0; column < kColumns; ++column) multiply_planes(sums[tile][column], halves, plane, b[column]);
      }
  }

  __device__ __forceinline__ static void multiply_planes(std::int32_t (&sums)[kOrders][4], const uint4 (&rows)[2],
                                                         int plane, const std::uint32_t (&b)[kInputPlanes][4]) {
    const uint4 &upper = rows[0], &lower = rows[1];
    const std::uint32_t a[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
    multiply<0>(sums, a, b, plane);
    if constexpr (kInputPlanes == 2) multiply<1>(sums, a, b, plane);
  }

  // The first plane is the signed one.
  template <int kInputPlane>
  __device__ __forceinline__ static void multiply(std::int32_t (&sums)[kOrders][4], const std::uint32_t (&a)[2][4],
                                                  const std::uint32_t (&b)[kInputPlanes][4], int plane) {
    const std::uint32_t first[2] = {b[kInputPlane][0], b[kInputPlane][1]};
    const std::uint32_t second[2] = {b[kInputPlane][2], b[kInputPlane][3]};
    if (plane == 0) {
      ptx::mma_bytes<true, kInputPlane == 0>(sums[kInputPlane], a[0], first);
      ptx::mma_bytes<true, kInputPlane == 0>(sums[kInputPlane], a[1], second);
    } else if constexpr (kWeightPlanes == 2) {
      ptx::mma_bytes<false, kInputPlane == 0>(sums[kInputPlane + 1], a[0], first);
      ptx::mma_bytes<false, kInputPlane == 0>(sums[kInputPlane + 1], a[1], second);
    }
  }
};

// Return the row and the column of element i of a fragment.
__device__ __forceinline__ int fragment_row(int lane, int i) { return lane / 4 + 8 * (i / 2); }
__device__ __forceinline__ int fragment_column(int lane, int i) { return 2 * (lane % 4) + i % 2; }

}  // namespace qcore
