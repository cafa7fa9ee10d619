#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/window/window_tile.cuh"

// Float activations on tensor cores: the weights' codes, exact in 16 bits, times the activations, also in 16 bits; the
// fp32 sums of a block are scaled into fp32 totals. fp16 and bf16 activations are taken as they are, fp32 ones as three
// terms in bf16 that add up to them.
//
// With offsets, a code is counted from the stored code nearest to the weight 0, so that a code's share and what is left
// of the offset, which is multiplied by the block's sum of activations, do not cancel: together they are at most three
// times the weight.
namespace qcore::sm80_float_mma {

constexpr int kChunk = 32;  // k of two products of matrices
constexpr int kThreads = 256;

// A tile of y is 32*pairs*warps_n columns n by 8*tiles*warps_m rows; a warp computes 32*pairs columns of 8*tiles rows.
// A stage of the tile's operands holds `chunks` chunks of k, which warps_k warps share.
struct Shape {
  int warps_n, warps_m, warps_k, pairs, tiles, chunks;

  constexpr int columns() const { return 32 * pairs * warps_n; }
  constexpr int rows() const { return 8 * tiles * warps_m; }
};

// When a block's sums become part of the totals: after the last of its stages, if it is whole ones, else after every
// chunk. A warp does that with the part of a block that it has.
enum class Promote { chunk, stage };

// Copies ahead: what fits.
constexpr std::int64_t kSharedBytes = 96 << 10;
constexpr int kMaxStages = 8;

// Rows of activations in 16 bits. A unit is 16 bytes.
struct Activations {
  const uint4* values;         // [planes, M, units]
  std::int64_t row_units;      // from row to row
  std::int64_t plane_units;    // from plane to plane
  std::int64_t units;          // of a row; what is behind it counts as zeros
  std::int64_t rows, columns;  // M, K
  DType dtype;                 // f16, bf16; f32: three planes of bf16
};

struct Arguments {
  Activations x;
  std::int64_t first_row;  // of the launch's results in out.y
  DeviceWeight w;
  DeviceOutput out;
  std::int64_t y_row_stride;  // linear's; 0: ask out.y
  bool store_fours;           // four neighbors of y lie side by side and aligned
  std::int64_t enough_tiles;
};
struct WindowArguments : Arguments, WindowResults {  // window: steps in units of x
  std::int64_t group_units;                          // from group to group of a pixel
};

// Few rows: as many thread blocks as there are groups of 32 columns, with K spread over the warps. Many rows: the
// larger a tile, the fewer bytes of the second-level cache per operation. `tall` is `large` with warps of 64 rows, not
// 32, which decode half as many weights; offsets and windows would take too many registers for it.
enum class Size { rows8, rows16, narrow, medium, wide, large, tall };

struct Tuning {
  // A stage of a window's tile has one chunk of each range of K.
  static constexpr Shape shape(Size size, int planes, bool window) {
    switch (size) {
      case Size::rows8:
        return {1, 1, 8, 1, 1, 8};
      case Size::rows16:
        return {1, 1, 8, 1, 2, 8};
      case Size::narrow:
        return {1, 2, 4, 1, 4, 4};
      case Size::medium:
        return {2, 2, 2, 1, 4, planes == 1 && !window ? 4 : 2};
      case Size::wide:
        return {4, 2, 1, 1, 4, 2};
      case Size::tall:
        return {4, 2, 1, 1, 8, 2};
      default:
        return {2, 4, 1, 2, 4, window ? 1 : 2};
    }
  }
  static constexpr int blocks_per_sm(Size size, int planes) {
    return planes == 1 && (size == Size::rows8 || size == Size::rows16) ? 2 : 1;
  }
  static constexpr std::int64_t kMaxFewRows = 32;   // of a matrix, in tiles of 8 or 16 rows
  static constexpr std::int64_t kEnoughTiles = 96;  // with fewer tiles of a size than this, those of the next one
};

// y = act(x W^T + bias). Need sm_80, and with several groups whole panels in each.
void run_f16(const Arguments& arguments, cudaStream_t stream);
void run_bf16(const Arguments& arguments, cudaStream_t stream);
void run_f32(const Arguments& arguments, cudaStream_t stream);
void run_f16(const WindowArguments& arguments, cudaStream_t stream);
void run_bf16(const WindowArguments& arguments, cudaStream_t stream);
void run_f32(const WindowArguments& arguments, cudaStream_t stream);

template <class Given>
void run(const Given& a, cudaStream_t stream) {
  if (a.x.dtype == DType::f16)
    run_f16(a, stream);
  else if (a.x.dtype == DType::bf16)
    run_bf16(a, stream);
  else
    run_f32(a, stream);
}

}  // namespace qcore::sm80_float_mma
