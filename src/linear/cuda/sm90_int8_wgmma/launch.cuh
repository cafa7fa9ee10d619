#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/quantize_activations.cuh"
#include "linear/problem.h"

// Integer activations and many rows on sm_90a: as `sm80_int8_mma`, but with the products of whole warpgroups, y^T = W
// x^T. One operand is the weight, from registers, as it is packed; the other are codes in shared memory, quantized into
// the order in which they lie there.
namespace qcore::sm90_int8_wgmma {

struct Tuning {
  static constexpr int kColumns = 128;                     // n of a tile
  static constexpr int kMaxShift = 7, kSmallestShift = 5;  // 128 to 32 rows of a tile
  static constexpr std::int64_t kEnoughTiles = 100;

  // The most rows of a tile that leave enough of them for all multiprocessors.
  static constexpr int row_shift(std::int64_t m, std::int64_t n, std::int64_t enough_tiles) {
    int shift = kMaxShift;
    while (shift > kSmallestShift && (n + kColumns - 1) / kColumns * (((m - 1) >> shift) + 1) < enough_tiles) --shift;
    return shift;
  }
};

// Thread blocks that share what they load: those of one row of the cluster the codes, of one column the weights.
struct Cluster {
  int columns, rows;
};

struct Arguments {
  QuantizedRows<std::int8_t> x;  // tiled
  std::int64_t first_row;        // of x's rows in out.y
  DeviceWeight w;
  DeviceOutput out;
  bool pairs;  // y has one leading axis, and two neighboring outputs of a row are one aligned store
  Cluster cluster;
};

// What x.padded_block must be for P > 1: 32, 64 or a multiple of 128.
void run(const Arguments& arguments, cudaStream_t stream);

}  // namespace qcore::sm90_int8_wgmma

namespace qcore {

struct ScratchBounds;
void run_sm90_int8_wgmma(const LinearProblem& problem, const ScratchBounds& bounds, std::int64_t enough_tiles);

}  // namespace qcore
