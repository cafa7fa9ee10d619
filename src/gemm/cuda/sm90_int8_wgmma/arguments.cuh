#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/gathered_rows.cuh"

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

// Two tiles share their columns of the weight, where there are pairs: larger clusters do not fill every multiprocessor.
constexpr Cluster cluster_of(std::int64_t tile_rows) { return {1, tile_rows % 2 ? 1 : 2}; }

struct Arguments {
  QuantizedRows<std::int8_t> x;  // padded_block for P > 1: 32, 64 or a multiple of 128; without a window tiled
  std::int64_t first_row;        // of x's rows in out.y
  DeviceWeight w;
  DeviceOutput out;
  bool pairs;  // y has one leading axis, and two neighboring outputs of a row are one aligned store
  Cluster cluster;
};

// Under a window. The weight's blocks and steps count all taps; x.rows are results, and of x.tiled counts all but where
// things lie: `parameters` is null.
struct WindowArguments : Arguments {
  GatheredRows gathered;
};

}  // namespace qcore::sm90_int8_wgmma
