#pragma once

#include <cstdint>

#include "formats/packed_layout.h"
#include "gemm/cpu/tile_data.h"

// What one instruction set contributes to conv2d on the CPU. Included by files compiled for that set, so it holds plain
// data and no inline functions but those of PackedLayout.
namespace qcore {

// A pixel's channels of one group lie together in a row: its blocks' parameters, then its codes in the k order of the
// packed weight, each block padded like the weight's. A tile has one pointer per pixel for all of that.
struct PixelRows {
  enum Parameter { kScale, kStart, kScaledSum, kOffset, kSum, kParameters };  // as in PackedRows, [kParameters][P]

  char* data;
  std::int64_t row_bytes;  // from group to group
  std::int64_t codes;  // from a row's start to its codes, in bytes; 0 for float activations, which have nothing else

  // Depthwise rows differ, see tile_depthwise.h, and hold a tile's channels only: the neighbors that a tile reads then
  // lie together, and don't compete for the same lines of the first-level cache.
  std::int64_t plane_bytes, plane_channels;  // from one tile's channels to the next one's
  TileParameters weight_scales;
};

struct ConvTileArguments {
  const PackedLayout* layout;
  const std::uint8_t* codes;   // of the tile's first panel
  TileParameters scales;       // likewise
  TileParameters offsets;      // likewise; null for symmetric weights
  const float* weight_sums;    // likewise, of the first tap; null unless the activations have offsets
  const char* rows;            // the group's row of pixel 0
  std::int64_t codes_at;       // PixelRows::codes
  const std::int64_t* pixels;  // [taps][tap_stride]: of the pixels under each tap, bytes from `rows`; one of zeros is
                               // what padding sees
  std::int64_t tap_stride;
  const float* weights;  // of depthwise tiles: one per channel and tap
  std::int64_t weights_tap, weights_panel;
  bool
      slides;  // of depthwise tiles: three taps in each row of the kernel, and the next result's pixels are a tap ahead
  int results;        // pixels of the tile, up to ConvKernels::max_results; an even number
  int panels;         // up to ConvKernels::max_panels
  const float* bias;  // of the tile's channels, or null
  bool clamp;         // to [lo, hi]
  float lo, hi;
  float* out;  // [results][out_stride]
  std::int64_t out_stride;

  QCORE_INLINE int row_count() const { return results; }
};

struct ConvKernels {
  int max_results;
  int max_panels;
  int bytes_per_code;  // 1, 2, or 4 for float activations
  // Converts `count` contiguous elements (fp16 or bf16) to fp32.
  void (*widen)(const void* data, int dtype, std::int64_t count, float* out);
  // out[column * out_stride + row] = x[row * row_stride + column]; writes whole vectors of rows.
  void (*transpose)(const void* x, int dtype, std::int64_t row_stride, std::int64_t rows, std::int64_t columns,
                    float* out, std::int64_t out_stride);
  // Quantizes (or, for float activations, places) `count` rows of K values, from row to row `stride` values further.
  void (*pack)(const float* values, std::int64_t stride, std::int64_t count, const PackedLayout& layout, int mode,
               const PixelRows& rows);
  void (*tile)(const ConvTileArguments& arguments);
  // Depthwise: the factors that `tile` multiplies with, [panels][taps][16]. Null: not depthwise.
  void (*weights)(const ConvTileArguments& arguments, int mode, float* out);
  // Rounds `columns` contiguous results to the output's dtype.
  void (*store_row)(const float* values, std::int64_t columns, const OutputRow& row);
};

// One set of kernels for each CPU row of conv2d's kernel table.
extern const ConvKernels kConvInt8Avx2, kConvInt8W4Avx2, kConvInt16Avx2, kConvFloatAvx2;  // conv2d_avx2.cpp
extern const ConvKernels kConvInt8AvxVnni, kConvInt16AvxVnni;                             // conv2d_avxvnni.cpp
extern const ConvKernels kConvInt8Avx512Vnni, kConvInt16Avx512Vnni, kConvFloatAvx512;     // conv2d_avx512vnni.cpp
extern const ConvKernels kConvDepthwiseAvx2, kConvDepthwiseFloatAvx2;                     // conv2d_avx2.cpp
extern const ConvKernels kConvDepthwiseAvx512, kConvDepthwiseFloatAvx512;                 // conv2d_avx512vnni.cpp

}  // namespace qcore
