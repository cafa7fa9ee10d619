#pragma once

#include <cstdint>

#include "formats/packed_layout.h"
#include "gemm/cpu/tile_data.h"

// One instruction set's part in products with per-block weights on the CPU: packing of activations, and tiles.
// Included by files compiled for that set, so it holds plain data and no inline functions but those of PackedLayout.
namespace qcore {

// Activations as tiles read them. A row's channels of one group lie together: its blocks' parameters, then its codes in
// the k order of the packed weight, each block padded like the weight's. Start is -zero_code * sum, modulo 2^32, which
// corrects for weights that are stored unsigned; scaled sum is scale * sum of codes.
struct PackedRows {
  enum Parameter { kScale, kStart, kScaledSum, kOffset, kSum, kParameters };  // [kParameters][P]
  static constexpr std::int64_t kSlackBytes = 64;  // after each row, for stores of whole vectors

  char* data;
  std::int64_t row_bytes;  // from group to group
  std::int64_t codes;      // from a row's start to its codes, in bytes; 0 for fp32 values, which have no parameters

  // Depthwise rows differ, see conv2d/cpu/tile_depthwise.h, and hold a tile's channels only: the neighbors that a tile
  // reads then lie together, and don't compete for the same lines of the first-level cache.
  std::int64_t plane_bytes, plane_channels;  // from one tile's channels to the next one's
  TileParameters weight_scales;
};

struct BlockTileArguments : TilePlace<float> {
  static constexpr int kMaxPanels = 6;

  std::int64_t blocks, block_steps, last_block_steps, panel_bytes;  // of the layout, which computes them by divisions
  const std::uint8_t* codes;                                        // of the tile's first panel
  TileParameters scales;                                            // likewise
  TileParameters offsets;                                           // likewise; null for symmetric weights
  const float* weight_sums;                    // likewise, of the first tap; null unless the activations have offsets
  std::int64_t weight_sums_tap;                // from tap to tap
  std::int64_t codes_at;                       // PackedRows::codes
  std::int64_t prefetch_distance[kMaxPanels];  // bytes ahead of each panel's weights; 0 for none
  std::int64_t prefetch_switch_block;          // from this block on, the prefetch goes prefetch_switch_bytes
                                               // further, to the next column; -1 for none
  std::int64_t prefetch_switch_bytes;
  std::int64_t prefetch_parameters;  // likewise of scales and offsets, in elements; 0 for none
  std::int64_t first_block;          // blocks [first_block, end_block) of each tap are added; a tile that does not
  std::int64_t end_block;            // start at block 0 continues from what is in `out`
  const float* decoded;              // fp32 weights of these blocks, by BlockKernels::decode; null: decode on the way
  std::int64_t decoded_steps;        // of one panel
  bool finishes;                     // whether these are the last blocks, after which come bias and clamp
  const float* bias;                 // of the tile's channels, or null
  bool clamp;                        // to [lo, hi]
  float lo, hi;

  // Only depthwise tiles have these.
  const float* weights;  // one per channel and tap
  std::int64_t weights_tap, weights_panel;
  bool slides;  // three taps in each row of the kernel, and the next result's pixels are a tap ahead
};

struct BlockKernels {
  int max_rows;        // of a tile
  int max_panels;      // likewise
  int max_products;    // largest rows * panels
  int bytes_per_code;  // 1, 2, or 4 for fp32 activations
  // Converts `count` contiguous elements (fp16 or bf16) to fp32.
  void (*widen)(const void* data, int dtype, std::int64_t count, float* out);
  // out[column * out_stride + row] = x[row * row_stride + column]; writes whole vectors of rows.
  void (*transpose)(const void* x, int dtype, std::int64_t row_stride, std::int64_t rows, std::int64_t columns,
                    float* out, std::int64_t out_stride);
  // Quantizes (or, for float activations, places) `count` rows of K values, from row to row `stride` values further.
  void (*pack)(const float* values, std::int64_t stride, std::int64_t count, const PackedLayout& layout, int mode,
               const PackedRows& rows);
  void (*tile)(const BlockTileArguments& arguments);
  // Rounds `columns` contiguous results to fp16 or bf16, or copies them as they are.
  void (*store_row)(const float* values, std::int64_t columns, void* out, int dtype);
  // For float activations: writes the weights of the tile's blocks, [panels][k][16]. Null: the tile takes codes only.
  void (*decode)(const BlockTileArguments& arguments, float* out);
  // Depthwise: the factors that `tile` multiplies with, [panels][taps][16]. Null: not depthwise.
  void (*depthwise_weights)(const BlockTileArguments& arguments, int mode, float* out);
};

// One set of kernels for each row of the kernel tables of linear and conv2d.
extern const BlockKernels kInt8Avx2, kInt8W4Avx2, kInt16Avx2, kFloatAvx2;   // gemm_avx2.cpp
extern const BlockKernels kInt8AvxVnni, kInt16AvxVnni;                      // gemm_avxvnni.cpp
extern const BlockKernels kInt8Avx512Vnni, kInt16Avx512Vnni, kFloatAvx512;  // gemm_avx512vnni.cpp
extern const BlockKernels kFloatAvx512Bf16;                                 // gemm_avx512bf16.cpp

}  // namespace qcore
