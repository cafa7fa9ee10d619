#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/quantize_activations.cuh"

// Integer activations and blocks of 16 k, from sm_80 on: one product of matrices is a block, so that its int32 results
// are promoted right away, block after block, with the operations and in the order of the reference. What a result
// costs is its promotion; everything else is shared by as many results as a warp's registers hold.
namespace qcore::sm80_int8_mma16 {

constexpr int kBlock = 16;  // k

// A tile of y is 16*panels*warps_n columns n by 8*tiles*warps_m rows; a warp computes 16*panels columns of 8*tiles
// rows.
struct Shape {
  int warps_n, warps_m, panels, tiles;

  constexpr int columns() const { return 16 * panels * warps_n; }
  constexpr int rows() const { return 8 * tiles * warps_m; }
  constexpr int threads() const { return 32 * warps_n * warps_m; }
};

// 32 columns by 16 rows, 64 by 32, 64 by 64.
enum class Size { small, medium, large };
constexpr int kSizes = 3;

// Which terms a block adds to a result: its products; these and the term of the weight's offsets; or these and the term
// of the activations' offsets, where the weight may have no offsets.
enum class Terms { products, weight_offsets, all };

struct Tuning {
  static constexpr Shape shape(Size size) {
    return size == Size::small ? Shape{2, 2, 1, 1} : size == Size::medium ? Shape{2, 2, 2, 2} : Shape{2, 2, 2, 4};
  }
  static constexpr int kStageBlocks = 8;
  // Copies ahead, so that four thread blocks fit in a multiprocessor of sm_90.
  static constexpr int stages(Size size, Terms terms) {
    return size == Size::small ? 4 : size == Size::medium && terms == Terms::products ? 3 : 2;
  }
  static constexpr int resident(Size) { return 4; }  // thread blocks that share a multiprocessor's registers

  // The larger a tile, the fewer instructions for a result; the smaller, the more warps there are to hide what each
  // waits for. Offsets of activations have one size, because they have few users.
  static constexpr Size choose(std::int64_t m, std::int64_t n, Terms terms, std::int64_t multiprocessors) {
    const auto tiles = [&](Size size) {
      const int rows = shape(size).rows(), columns = shape(size).columns();
      return ((n + columns - 1) / columns) * ((m + rows - 1) / rows);
    };
    if (terms == Terms::all) return Size::medium;
    if (tiles(Size::large) >= 3 * multiprocessors) return Size::large;
    return 2 * tiles(Size::medium) >= 3 * multiprocessors ? Size::medium : Size::small;
  }
};

struct Arguments {
  QuantizedRows<std::int8_t> x;  // padded_block 16, tiled, chunk by chunk; memory behind the parameters for a stage
  std::int64_t first_row;        // of x's rows in out.y
  DeviceWeight w;                // blocks of 16
  DeviceOutput out;
  std::int64_t y_row_stride;  // 0: ask out.y
  bool overlap;               // with the kernel in front; on sm_90
  Size size;

  Terms terms() const { return w.sums ? Terms::all : w.offsets ? Terms::weight_offsets : Terms::products; }
};

// y = act(x W^T + bias). Needs sm_80.
void run(const Arguments& a, cudaStream_t stream);

}  // namespace qcore::sm80_int8_mma16
