#pragma once

#include "linear/device_operands.cuh"
#include "linear/quantize_activations.cuh"

// Integer activations and many rows, in one launch: products of a block of k stay in registers and are promoted into
// fp32 totals there, block after block, with the operations and in the order of the reference.
namespace qcore::fused {

// A tile of y is 32*pairs*warps_n columns n by 8*tiles*warps_m rows; each warp computes 32*pairs columns of 8*tiles
// rows.
struct Shape {
  int warps_n, warps_m, pairs, tiles;

  constexpr int columns() const { return 32 * pairs * warps_n; }
  constexpr int rows() const { return 8 * tiles * warps_m; }
  constexpr int threads() const { return 32 * warps_n * warps_m; }
};

// The larger a tile, the fewer bytes of the second-level cache per operation; the smaller, the more run at once.
enum class Size { small, large };

struct Tuning {
  static constexpr Shape shape(Size size) { return size == Size::small ? Shape{2, 2, 1, 4} : Shape{4, 2, 1, 8}; }
  // With fewer large tiles than this, small ones.
  static constexpr int kEnoughTiles = 96;

  // What the registers of a multiprocessor are divided by; no instance spills with these.
  static constexpr int blocks_per_sm(Size size, int chunks) { return size == Size::large ? 1 : chunks == 1 ? 4 : 3; }

  // Copies ahead: of whole blocks of 32*chunks k.
  static constexpr int stages(int bits, int chunks) { return chunks < 4 ? 4 : bits == 4 ? 3 : 2; }
};

constexpr int kChunk = 32;  // k of one product of matrices

struct Arguments {
  QuantizedRows<std::int8_t> x;  // codes and terms; padded_block a multiple of 32
  std::int64_t first_row;        // of x's rows in out.y
  DeviceWeight w;
  DeviceOutput out;
  std::int64_t enough_tiles;
};

// y = act(x W^T + bias). Needs sm_80.
void run(const Arguments& arguments, cudaStream_t stream);

}  // namespace qcore::fused

namespace qcore {

struct ScratchBounds;
void run_fused(const LinearProblem& problem, const ScratchBounds& bounds, std::int64_t enough_tiles);

}  // namespace qcore
