#pragma once

#include <cstddef>

#include "gemm/cuda/sm80_float_mma/arguments.cuh"
#include "runtime/cuda/ptx.cuh"

// Stages of a tile in shared memory, and the copies that fill them. Weights stay packed.
namespace qcore::sm80_float_mma {

// `Rows` has the tile's shape. kSets: of parameters, one per chunk or one for the stage; kArrays: scales, and offsets.
template <class Rows, int kBits, int kPlanes, int kSets, int kArrays>
struct Stage {
  static constexpr Shape kShape = Rows::kShape;
  static constexpr int kChunks = kShape.chunks, kColumns = kShape.columns(), kRows = kShape.rows();
  static constexpr int kSteps = kBits == 8 ? 8 : 4;  // packed steps in a chunk
  static constexpr int kPanels = kColumns / static_cast<int>(PackedLayout::kPanelRows);

  uint4 weights[kPanels * kChunks * kSteps * 4];
  uint4 x[kPlanes * kChunks * kRows * 4];
  float parameters[kArrays][kSets][kColumns];

  __device__ float4 scales(int set, int column) const {
    return *reinterpret_cast<const float4*>(&parameters[0][set][column]);
  }
  __device__ float4 offsets(int set, int column) const {
    return *reinterpret_cast<const float4*>(&parameters[kArrays - 1][set][column]);
  }

  // Lines of 128 bytes are two steps. Lanes that differ in the step and in the lowest bit of the unit, 4 columns n,
  // read at once: the exclusive or spreads them over the banks.
  __device__ static int weight_unit(int panel, int chunk, int step, int unit) {
    const int line = step / 2;
    return (panel * kChunks + chunk) * kSteps * 4 + line * 8 + ((step % 2 * 4 + unit) ^ (2 * (line % (kSteps / 2))));
  }
  // Lanes read 8 k each, eight lanes two neighboring rows: 128 bytes. A row's chunks are written at once; those of odd
  // numbers have neighboring rows exchanged, which puts two chunks on all banks.
  // `row` is below 8.
  __device__ static int x_unit(int plane, int chunk, int eight, int row, int quad) {
    return ((plane * kChunks + chunk) * kRows + 8 * eight) * 4 + (row ^ (chunk & 1)) * 4 + quad;
  }
};

// Which chunks of k a stage holds. Each of the warps that share K takes a range of it, and a stage holds `parts`
// successive chunks of every range; chunk i of a stage is part i / warps_k of range i % warps_k.
struct Ranges {
  int chunks;  // of K
  int length;  // of a range, in chunks
  int parts;

  __device__ Ranges(int chunks_, int warps_k, int parts_) : chunks(chunks_), parts(parts_) {
    length = ((chunks + warps_k - 1) / warps_k + parts - 1) / parts * parts;
  }
  __device__ int stages() const { return length / parts; }
  __device__ int begin(int range) const { return range * length; }
  __device__ int end(int range) const { return chunks - begin(range) < length ? chunks : begin(range) + length; }
};

// Where a warp is in the blocks of its range of chunks. Every tap of a window begins with a block of its own.
template <bool kWindow>
class BlockWalk {
 public:
  __device__ BlockWalk(int begin, int block_chunks, int tap_chunks)
      : block_chunks_(block_chunks), tap_chunks_(tap_chunks) {
    if constexpr (kWindow) {
      if (tap_chunks == 0) return;  // no chunks at all
      begin %= tap_chunks;
      tap_left_ = tap_chunks - begin;
    }
    set(block_chunks - begin % block_chunks);
  }

  __device__ void advance(int chunks) {
    left_ -= chunks;
    if constexpr (kWindow) tap_left_ -= chunks;
  }
  // Whether the block is complete.
  __device__ bool ended() const { return left_ <= 0; }
  __device__ void next() {
    if constexpr (kWindow)
      if (tap_left_ <= 0) tap_left_ = tap_chunks_;
    set(block_chunks_);
  }

 private:
  __device__ void set(int chunks) { left_ = kWindow && tap_left_ < chunks ? tap_left_ : chunks; }

  int block_chunks_, tap_chunks_, tap_left_ = 0;
  int left_ = 0;  // chunks of the block
};

}  // namespace qcore::sm80_float_mma
