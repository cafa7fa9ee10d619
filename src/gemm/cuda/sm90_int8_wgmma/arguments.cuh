#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/expert_tiles.cuh"
#include "gemm/cuda/gathered_rows.cuh"
#include "gemm/cuda/quantize_activations.cuh"
#include "gemm/cuda/spread_steps.cuh"
#include "runtime/cuda/ptx_tensor_map.cuh"
#include "runtime/memory.h"

// Integer activations and many rows on sm_90a: as `sm80_int8_mma`, but with the products of whole warpgroups, y^T = W
// x^T. One operand is the weight, from registers, as it is packed; the other are codes in shared memory, quantized into
// the order in which they lie there.
namespace qcore::sm90_int8_wgmma {

// The number of blocks in a stage that selects the kernels for one block per row: int32 sums stay in registers to the
// end of the row, which leaves room for twice as many of them.
constexpr int kOneBlock = 0;

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

  // Returns the height with which all tiles take least, up to 256 rows with one block per row: rounds of tiles, times
  // what a tile takes, in units of 1 us per 4096 k, as measured on one H100.
  static constexpr int fastest_one_block_shift(std::int64_t m, std::int64_t n, std::int64_t multiprocessors) {
    constexpr int kTime[] = {12, 14, 18, 30};
    int best = kSmallestShift;
    std::int64_t least = 0;
    for (int i = 0; i < 4; ++i) {
      const int shift = kSmallestShift + i;
      const std::int64_t tiles = (n + kColumns - 1) / kColumns * (((m - 1) >> shift) + 1);
      const std::int64_t time = (tiles + multiprocessors - 1) / multiprocessors * kTime[i];
      if (i == 0 || time < least) best = shift, least = time;
    }
    return best;
  }

  // Likewise of experts with `mean` rows on average: half a tile more than those fill, for rows are not dealt out
  // evenly.
  static constexpr int fastest_expert_shift(double mean, bool one_block, int heights) {
    constexpr double kBlocksTime[] = {13, 17, 27, 45}, kOneBlockTime[] = {12, 14, 18, 30};
    int best = kSmallestShift;
    double least = 0;
    for (int i = 0; i < heights; ++i) {
      const double tiles = mean / (1 << (kSmallestShift + i)) + 0.5;
      const double time = (tiles < 1 ? 1 : tiles) * (one_block ? kOneBlockTime[i] : kBlocksTime[i]);
      if (i == 0 || time < least) best = kSmallestShift + i, least = time;
    }
    return best;
  }
};

// Thread blocks that share what they load: those of one row of the cluster the codes, of one column the weights.
struct Cluster {
  int columns, rows;
};

// For windows: two tiles share their columns of the weight, where there are pairs. Larger clusters do not fill every
// multiprocessor. Rows of a matrix take 1 us less without clusters.
constexpr Cluster cluster_of(std::int64_t tile_rows) { return {1, tile_rows % 2 ? 1 : 2}; }

// With one block per row: tiles of 256 rows share codes, of which they have more than weights, if they do not all run
// at once; smaller ones weights, unless those have 4 bits. As measured on one H100.
constexpr Cluster one_block_cluster(int bits, int shift, std::int64_t tile_columns, std::int64_t tile_rows,
                                    std::int64_t multiprocessors) {
  const bool large = shift > Tuning::kMaxShift;
  if (large && tile_columns * tile_rows <= multiprocessors) return {1, 1};
  if (large && tile_columns % 2 == 0) return {2, 1};
  return large || bits == 8 ? cluster_of(tile_rows) : Cluster{1, 1};
}

// How the codes of a block lie: 32 or 64, or whole stages.
inline std::int64_t padded_block(const DeviceWeight& w) {
  const std::int64_t length = std::max<std::int64_t>(std::min(w.block_size, w.k), 1);
  if (w.blocks == 1) return round_up(length, TiledRows::kStageK);
  return length <= 32 ? 32 : length <= 64 ? 64 : round_up(length, TiledRows::kStageK);
}

// How many heights of tiles there are, from 32 rows on. Halves of 256 rows share their registers for sums, so that a
// block's sums can't stay there for longer than a stage.
inline int tile_heights(bool one_block, std::int64_t padded_block) {
  return one_block || padded_block == TiledRows::kStageK ? 4 : 3;
}

struct Arguments {
  QuantizedRows<std::int8_t> x;  // padded_block for P > 1: 32, 64 or a multiple of 128; without a window tiled
  std::int64_t first_row;        // of x's rows in out.y
  DeviceWeight w;                // n is that of one expert
  DeviceOutput out;              // the bias is that of expert 0
  ExpertTiles experts;           // of rows of a matrix: not in a cluster
  bool one_block;                // per row, of k
  bool pairs;                    // y has one leading axis, and two neighboring outputs of a row are one aligned store
  Cluster cluster;
  int spread;  // thread blocks over which the last tiles' steps are spread, without clusters; 0 if they are not
  SpreadTotals spread_totals;  // of that many thread blocks
  unsigned whole_tiles;        // set by the launch: the tiles whose steps are not spread
  // Set by the launch: of every byte. An instruction takes one constant, and with a mask that the compiler knew there
  // would be two of them for each operand.
  std::uint32_t upper_nibbles;
  int steps;  // of a tile: set by the launch; a division in the kernel would not be known to be uniform
};

// Rows of a matrix. The weight and its parameters are matrices for the copy engine: see set_maps().
struct RowArguments : Arguments {
  ptx::TensorMap words, scales, offsets, sums;
};

// y = act(x W^T + bias). Needs sm_90a.
void run_rows(const RowArguments& a, cudaStream_t stream);

// Under a window, of multiples of kTapK channels. The weight's blocks and steps count all taps; x.rows are results, and
// of x.tiled counts all but where things lie: `parameters` is null. The copy engine takes codes and the weight, see
// set_maps().
struct WindowArguments : Arguments {
  GatheredRows gathered;
  ptx::TensorMap codes, words;
};
constexpr int kTapK = 64;  // channels of a pixel that are copied at a time, so that taps share a stage

}  // namespace qcore::sm90_int8_wgmma
