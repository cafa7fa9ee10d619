#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace qcore {

// Where codes and parameters of activations lie so that a stage of a product is one piece of memory: a tile of rows by
// kStageK k, as product() of warpgroups in runtime/cuda/ptx_wgmma.cuh wants its operand b, or by kChunkK k, row after
// row.
struct TiledRows {
  static constexpr int kStageK = 128, kChunkK = 32;

  // The first two are for warpgroups, with weights of 8 and of 4 bits.
  enum class Order { bytes, nibbles, chunks };

  int shift = 0;  // a tile has 1 << shift rows, for warpgroups at least 16; 0: rows are not tiled
  int arrays =
      1;  // of parameters: scales; then, if anything has offsets, scaled sums; then, if a kernel wants them, offsets
  Order order = Order::bytes;
  std::int64_t stages = 0;               // or chunks
  float* parameters = nullptr;           // [tiles, P, arrays, rows]
  const std::int32_t* places = nullptr;  // of rows, in their order: where each goes; null: they stay in it

  __host__ __device__ int rows() const { return 1 << shift; }

  // A lane finds the results of four neighboring rows in its registers: columns 8*(2*j) + 2*quad + {0, 1} and
  // 8*(2*j + 1) + 2*quad + {0, 1} of the product are rows 16*j + 4*quad ...
  __device__ static int column(int row) { return (row & ~15) | (row & 2) << 2 | (row >> 1 & 6) | (row & 1); }

  // A step of 4-bit weights holds 8 k, of which a lane's registers take the first half for the first 16 k of a
  // product, the second half for the others.
  __device__ static int nibble_order(int k) { return (k & ~31) | (k & 4) << 2 | (k >> 1 & 12) | (k & 3); }

  __device__ std::int64_t place(std::int64_t row) const { return places ? places[row] : row; }

  // Returns where a code of the row at place `row` lies. Codes of 16 neighboring k, with nibbles of 4, stay neighbors.
  __device__ std::int64_t code(std::int64_t row, std::int64_t k) const {
    if (order == Order::chunks)
      return ((((row >> shift) * stages + k / kChunkK) << shift) + (row & (rows() - 1))) * kChunkK + k % kChunkK;
    const int at = column(static_cast<int>(row) & (rows() - 1)), k_of_stage = static_cast<int>(k) % kStageK;
    const int byte = (order == Order::nibbles ? nibble_order(k_of_stage) : k_of_stage) ^ at % 8 * 16;
    return ((((row >> shift) * stages + k / kStageK) << shift) + at) * kStageK + byte;
  }
  __device__ std::int64_t parameter(std::int64_t row, std::int64_t p, std::int64_t blocks, int array) const {
    return ((((row >> shift) * blocks + p) * arrays + array) << shift) + (row & (rows() - 1));
  }
};

}  // namespace qcore
