#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/gathered_rows.cuh"

// Integer activations, few rows to about a hundred, on sm_90: tiles of y so small that every multiprocessor has one,
// and a ring in shared memory so deep that memory is not waited for in between, which one warp fills. A block's
// products stay in registers and become part of y there, block after block, with the operations and in the order of the
// reference. Where a tile is too small for all warps, they share the blocks of k: the blocks' sums are kept apart in
// shared memory, and other warps, a thread per column, add them in order. Where the whole row is one block, int32 sums
// stay in registers to its end.
namespace qcore::sm90_int8_mma {

constexpr int kChunk = 32;  // k of one product of matrices

// The number of chunks in a block that selects the kernels for one block per row. They copy and multiply kUnitChunks
// chunks as others do a block.
constexpr int kOneBlock = 0, kUnitChunks = 4;

// A tile of y is 16*panels*warps_n columns n by 8*tiles*warps_m rows; a warp computes 16*panels columns of 8*tiles
// rows, with every warps_k-th block of k. A multiprocessor runs `resident` thread blocks at once.
struct Shape {
  int warps_n, warps_m, warps_k, panels, tiles, resident;

  constexpr int columns() const { return 16 * panels * warps_n; }
  constexpr int rows() const { return 8 * tiles * warps_m; }
  constexpr int warps() const { return warps_n * warps_m * warps_k; }
};

// 32 columns by 8 to 64 rows, K shared by four warps, or with 8 rows by eight; then 64 by 32, with 8 and with 16 warps,
// and 32 by 64, each warp for itself.
enum class Size { rows8, split8, rows16, rows32, rows64, broad, broad16, tall };
constexpr int kSizes = 8;

// Returns whether there are kernels of this size; a block size of 0 is one block per row. With 8 bits and blocks of 128
// sm90_int8_wgmma takes more than 32 rows.
constexpr bool has_kernel(Size size, std::int64_t block_size, int bits, bool offsets) {
  if (offsets && (size == Size::broad || size == Size::broad16)) return false;
  if (size == Size::split8) return bits == 4 && block_size != 32;
  if (block_size == 0) return size <= Size::rows64;
  return size != Size::rows64 || block_size < 128 || bits == 4;
}

struct Tuning {
  static constexpr Shape shape(Size size) {
    switch (size) {
      case Size::rows8:
        return {1, 1, 4, 2, 1, 2};
      case Size::split8:
        return {1, 1, 8, 2, 1, 2};
      case Size::rows16:
        return {1, 1, 4, 2, 2, 2};
      case Size::rows32:
        return {2, 1, 4, 1, 4, 1};
      case Size::rows64:
        return {1, 2, 4, 2, 4, 1};
      case Size::broad:
        return {4, 2, 1, 1, 2, 2};
      case Size::broad16:
        return {4, 4, 1, 1, 1, 1};
      default:
        return {1, 4, 1, 2, 2, 2};
    }
  }
  static constexpr std::int64_t tiles(std::int64_t n, std::int64_t rows, int columns, int tile_rows) {
    return (n + columns - 1) / columns * ((rows + tile_rows - 1) / tile_rows);
  }
  static constexpr bool has_few_tiles(std::int64_t n, int multiprocessors) { return (n + 31) / 32 <= multiprocessors; }
  // Returns whether tiles of 32 columns and as many rows as there are kernels for all run at once.
  static constexpr bool runs_at_once(std::int64_t rows, std::int64_t n, std::int64_t block_size, int bits, bool offsets,
                                     int multiprocessors) {
    return tiles(n, rows, 32, has_kernel(Size::rows64, block_size, bits, offsets) ? 64 : 32) <= multiprocessors;
  }
  // The lowest tiles that all run at once; where there are too many tiles for that, broad or high ones, which read
  // less. Rows of one block, or of many bytes, take one tile of 32 rows on a multiprocessor rather than two of 8 or one
  // of 16, whose stages have less to multiply. Measured on an H200, see docs/notes/linear-cuda.md.
  static constexpr Size choose(std::int64_t rows, const DeviceWeight& w, bool one_block, int multiprocessors) {
    constexpr std::int64_t kLongRow = 4096, kVeryLongRow = 8192;
    const std::int64_t block_size = one_block ? 0 : w.block_size;
    const bool offsets = w.offsets != nullptr;
    const bool long_row = w.k > kVeryLongRow, many_bytes = w.bits == 8 && (one_block || long_row);
    const bool many_columns = !has_few_tiles(w.n, 2 * multiprocessors);
    const bool splits = one_block || block_size == 64 || w.k > kLongRow || many_columns;
    const Size lowest = splits && has_kernel(Size::split8, block_size, w.bits, offsets) ? Size::split8 : Size::rows8;
    const auto run_at_once = [&](int tile_rows, int columns = 32) {
      return tiles(w.n, rows, columns, tile_rows) <= multiprocessors;
    };
    int most_low_tiles = one_block || many_bytes ? multiprocessors : 2 * multiprocessors;
    if (one_block && many_bytes) most_low_tiles = long_row ? 0 : multiprocessors / 2;
    if (tiles(w.n, rows, 32, 8) <= most_low_tiles) return lowest;
    if (run_at_once(16) && !many_bytes) return Size::rows16;
    if (run_at_once(32)) return Size::rows32;
    if (!offsets && block_size == 32 && rows > 16 && run_at_once(32, 64)) return Size::broad16;
    if (run_at_once(64) && has_kernel(Size::rows64, block_size, w.bits, offsets)) return Size::rows64;
    if (rows <= 8) return lowest;
    if (rows <= 16 || (rows <= 32 && offsets && !many_columns)) return Size::rows16;
    if (one_block) return rows <= 32 ? Size::rows32 : Size::rows64;
    if (rows > 32 || offsets) return Size::tall;
    if (broad_leaves_room(rows, w.n, w.k, multiprocessors) || !run_at_once(32, 64)) return Size::broad;
    return w.k < kVeryLongRow ? Size::broad16 : Size::rows32;
  }
  // Returns whether broad tiles and the thread blocks that quantize the next product's rows have a multiprocessor each.
  // Otherwise some tiles probably wait for those, and then share a multiprocessor while others have nothing to do.
  static constexpr bool broad_leaves_room(std::int64_t rows, std::int64_t n, std::int64_t k, int multiprocessors) {
    constexpr std::int64_t kQuantized = 4096;  // values of a row: what a thread block of quantize_aligned takes
    constexpr Shape kBroad = shape(Size::broad);
    return tiles(n, rows, kBroad.columns(), kBroad.rows()) + rows * ((k + kQuantized - 1) / kQuantized) <=
           multiprocessors;
  }
  // Chunks of k in a stage: whole blocks for every warp.
  static constexpr int chunks(Size size, int block_chunks) {
    if (block_chunks == kOneBlock) block_chunks = kUnitChunks;
    if (shape(size).warps_k == 1) return 8;
    if (size == Size::split8) return 8 * block_chunks;
    return block_chunks == 4 ? 16 : size == Size::rows64 ? 4 * block_chunks : 8;
  }

  static constexpr std::int64_t shared_bytes(Size size) { return (220 << 10) / shape(size).resident; }
  static constexpr int kMaxStages = 8;
  static constexpr std::int64_t kMinRows = 5, kMaxRows = 128;
  static constexpr std::int64_t kMinPlainRows = 2;  // in blocks of a weight that is not encoded and has no offsets
  // Returns whether this kernel is faster than sm90_int8_wgmma with so many rows in blocks of 32, 64 or 128, as
  // measured on an H100 and an H200: with fewer rows where its tiles of 64 columns, or of 32, do not all run at once.
  static constexpr bool is_faster(std::int64_t rows, std::int64_t n, std::int64_t k, std::int64_t block_size, int bits,
                                  bool offsets, int multiprocessors) {
    if (rows > kMaxRows) return false;
    if (runs_at_once(rows, n, block_size, bits, offsets, multiprocessors)) return true;
    if (has_few_tiles(n, multiprocessors)) return offsets || has_kernel(Size::rows64, block_size, bits, false);
    if (block_size == 32) return offsets || rows <= 64;
    if ((n + 63) / 64 <= multiprocessors) {
      const bool broad = rows > 16 && rows <= 32 && !offsets;
      return rows <= 64 && (!broad || bits == 4 || block_size < 128 || broad_leaves_room(rows, n, k, multiprocessors));
    }
    const bool low_tiles = bits == 4 ? offsets || has_few_tiles(n, 3 * multiprocessors) : offsets && block_size == 64;
    return rows <= (low_tiles ? 16 : 8);
  }
};

// How 4-bit codes of a weight with offsets become signed bytes for a product, and its result a float: those that stand
// for -8 to 7 are sixteenfold, those that stand for 0 to 15 are not.
struct NibbleForm {
  std::uint32_t left, right;  // shifts of the low and of the high halves of bytes
  std::uint32_t mask, flip;   // of the shifted bytes
  float unit, origin;         // result = unit * (the bits of the product as a float) + origin, exact

  static constexpr NibbleForm around(int zero) {
    return zero ? NibbleForm{4, 0, 0xf0f0f0f0u, 0x80808080u, 0.0625f, -786432.0f}
                : NibbleForm{0, 4, 0x0f0f0f0fu, 0, 1.0f, -12582912.0f};
  }
};

struct Arguments {
  QuantizedRows<std::int8_t> x;  // padded_block w.block_size; without a window tiled, chunk by chunk, with scaled sums
                                 // if the weight has offsets
  std::int64_t first_row;        // of x's rows in out.y
  DeviceWeight w;                // blocks of 32, 64 or 128, or units of a row's only block; no offsets with those, or
                                 // under a window
  NibbleForm nibbles;            // of 4 bits with offsets
  bool one_block;
  bool new_weight;  // kernels in front of this one write the weight
  DeviceOutput out;
  std::int64_t y_row_stride;  // 0: ask out.y
  bool store_fours;           // four neighbors of y lie side by side and aligned
  Size size;
};

// Under a window. The weight's blocks and steps count all taps; x.rows are results.
struct WindowArguments : Arguments {
  GatheredRows gathered;
};

}  // namespace qcore::sm90_int8_mma
