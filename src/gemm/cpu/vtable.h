#pragma once

#include <cstdint>

#include "formats/packed_layout.h"
#include "gemm/cpu/tile_data.h"

// One instruction set's part in products with per-block weights on the CPU: packing of activations, and tiles.
// Included by files compiled for that set, so it holds plain data and no inline functions but those of PackedLayout.
namespace qcore {

// The longest block that tiles take: the sum of so many 16-bit codes is the last that fits in int32.
constexpr std::int64_t kLongestBlock = 65536;

// Activations as tiles read them. A row's channels of one group lie together: its blocks' parameters, then its codes in
// the k order of the packed weight, each block padded like the weight's. Start is -zero_code * sum, modulo 2^32, which
// corrects for weights that are stored unsigned; scaled sum is scale * sum of codes.
struct PackedRows {
  enum Parameter { kScale, kStart, kScaledSum, kOffset, kSum, kParameters };  // [kParameters][P]
  static constexpr std::int64_t kSlackBytes = 64;  // after each row, for stores of whole vectors

  char* data;
  std::int64_t row_bytes;  // from group to group
  std::int64_t codes;      // from a row's start to its codes, in bytes; 0 for fp32 values, which have no parameters
  int zero_code;           // the stored code of the weight's value 0

  // Where blocks of x do not each have a scale of their own.
  bool per_row;          // all of a row has one
  float fixed;           // the scale of kActivationInt8Fixed
  const float* scales;   // of kActivationCodes, [rows][row_scales]
  const float* offsets;  // likewise, or null
  std::int64_t row_scales, blocks_per_scale;

  // Depthwise rows differ, see conv2d/cpu/tile_depthwise.h, and hold a tile's channels only: the neighbors that a tile
  // reads then lie together, and don't compete for the same lines of the first-level cache.
  std::int64_t plane_bytes, plane_channels;  // from one tile's channels to the next one's
  TileParameters weight_scales;
  int x_dtype;  // of the values that are packed; others are always fp32
};

// Codes of an encoded weight in groups of eight steps, and where they go as plain codes of 8 bits.
struct ExpandedCodes {
  const std::uint8_t* from;
  std::uint8_t* to;
  std::int64_t from_panel, to_panel;  // from panel to panel, in bytes
  int panels, bits;
  std::int64_t groups;
  bool looked_up;             // codes q are table[u] - 128, else u - zero
  const std::uint8_t* table;  // [16]
  int zero;
  std::int64_t prefetch_distance;  // in bytes
};

// Integers under super-parameters, for tiles that compute scales and offsets from them on the way, from the weight's
// first panel on. A number of up to 6 bits, less the encoding's zero, is low[its bits 0 to 3] + high[its bits 4 and 5];
// negative for offsets, which are -(super * number).
struct TileNumbers {
  const std::uint8_t* data;
  const std::uint16_t* super;
  std::int64_t panel_bytes, super_panel;  // from panel to panel, in bytes and in elements
  float low[16], high[16];
  float zero;  // of numbers of 8 bits
};

struct TileIntegers {
  TileNumbers scales, offsets;
  int super_shift;  // 2^super_shift blocks share a super-parameter
};

struct BlockTileArguments : TilePlace<float> {
  static constexpr int kMaxPanels = 6;

  std::int64_t first_panel;
  std::int64_t blocks, block_steps, last_block_steps, panel_bytes;  // of the layout, which computes them by divisions
  const std::uint8_t* codes;                                        // of the tile's first panel, from first_block on
  TileParameters scales;                                            // of the tile's first panel
  TileParameters offsets;                                           // likewise; null for symmetric weights
  std::int64_t parameters_begin, parameters_panel;  // the block that both begin with; from panel to panel, in elements
  const float* weight_sums;  // of the first panel and tap, [panels][P][16]; null unless the activations have offsets
  std::int64_t weight_sums_tap;                // from tap to tap
  std::int64_t codes_at;                       // PackedRows::codes
  std::int64_t prefetch_distance[kMaxPanels];  // bytes ahead of each panel's weights; 0 for none
  std::int64_t prefetch_switch_block;          // from this block on, the prefetch goes prefetch_switch_bytes
                                               // further, to the next column; -1 for none
  std::int64_t prefetch_switch_bytes;
  std::int64_t prefetch_parameters;  // likewise of scales and offsets, in elements; 0 for none
  std::int64_t first_block;          // blocks [first_block, end_block) of each tap are added; a tile that does not
  std::int64_t end_block;            // start at block 0 continues from what is in `out`
  const void* decoded;               // weights of these blocks, by BlockKernels::decode; null: decode on the way
  std::int64_t decoded_steps;        // of one panel
  bool finishes;                     // whether these are the last blocks, after which come bias and clamp
  const float* bias;                 // of the tile's channels, or null
  bool clamp;                        // to [lo, hi]
  float lo, hi;

  const ExpandedCodes* encoded;  // what codes mean; null for plain ones
  const TileIntegers* integers;  // where scales and offsets come from; null: `scales` and `offsets`
  const float* nibbles;          // the 16 numbers that stored codes of 4 bits stand for, read with float activations
};

// Returns how far ahead of its reads a single tile asks for a panel's weights: what memory delivers while the
// parameters of an encoded weight's run are written, or the whole of a shorter panel.
constexpr std::int64_t prefetch_bytes(std::int64_t panel_bytes) { return panel_bytes < 4096 ? panel_bytes : 4096; }

// Scales or offsets of an encoded weight, and where those of some blocks go as fp32, [panels][blocks][16].
struct ExpandedParameters {
  enum Type { kF32, kF16, kBf16, kE8m0, kE4m3, kU4, kU6, kU8, kZ4, kZ8 };

  const std::uint8_t* from;
  const std::uint16_t* super;
  float* to;
  std::int64_t from_panel, super_panel;  // from panel to panel, in bytes and in elements
  int panels;
  Type type;
  std::int64_t first_block, end_block, super_block;
  std::int64_t prefetch_distance, prefetch_supers;  // to the next column's, in bytes and in elements
  float zero, factor;                               // of integers; of floats of 8 bits
  const float* scales;                              // of these blocks, which zero points are multiplied by
  bool negated;
};

// The functions that all products of a vector set share, compiled once for it.
struct RowFunctions {
  // Converts `count` contiguous elements (fp16 or bf16) to fp32.
  void (*widen)(const void* data, int dtype, std::int64_t count, float* out);
  // out[column * out_stride + row] = x[row * row_stride + column]; writes whole vectors of rows.
  void (*transpose)(const void* x, int dtype, std::int64_t row_stride, std::int64_t rows, std::int64_t columns,
                    float* out, std::int64_t out_stride);
  // Rounds `columns` contiguous results to fp16 or bf16, or copies them as they are.
  void (*store_row)(const float* values, std::int64_t columns, void* out, int dtype);
  // Make an encoded weight's panels plain.
  void (*expand_codes)(const ExpandedCodes& arguments);
  void (*expand_parameters)(const ExpandedParameters& arguments);
};

struct BlockKernels {
  int max_rows;        // of a tile
  int max_panels;      // likewise
  int max_products;    // largest rows * panels
  int bytes_per_code;  // 1, 2, or 4 for fp32 activations
  const RowFunctions* rows;
  // Quantizes (or, for float activations, places) `count` rows of K values, from row to row `stride` values further.
  void (*pack)(const float* values, std::int64_t stride, std::int64_t count, const PackedLayout& layout, int mode,
               const PackedRows& rows);
  void (*tile)(const BlockTileArguments& arguments);
  // A tile that decodes an encoded weight on the way, of up to encoded_rows rows and just encoded_panels panels: of
  // 2, 3, 5 or 6 bits, or 4 bits with a codebook, every block whole groups of steps or half of one. Null: there is
  // none.
  void (*encoded_tile)(const BlockTileArguments& arguments);
  int encoded_rows, encoded_panels;
  // Whether tiles look codes of 4 bits up in BlockTileArguments::nibbles; else these must be consecutive integers.
  bool looks_up_nibbles;
  // The most rows of a tile that reads BlockTileArguments::integers: scales and offsets of 4 bits with codes of 2, of 6
  // bits with plain codes of 4 and codes of 5; scales of 6 bits alone with codes of 3, and of 4 that are looked up, and
  // of 8 bits with codes of 6.
  int integer_rows;
  // Writes the weights of the tile's blocks as the tiles of many rows read them: for float activations fp32
  // [panels][k][16]. Null: the tile takes codes only.
  void (*decode)(const BlockTileArguments& arguments, void* out);
  // Depthwise: the factors that `tile` multiplies with, [panels][taps][16]. Null: not depthwise.
  void (*depthwise_weights)(const BlockTileArguments& arguments, int mode, float* out);

  // Only tiles that read nothing but decoded weights, whatever the rows and taps, have these.
  std::int64_t (*decoded_panel_bytes)(const BlockTileArguments& arguments) =
      nullptr;                  // what decode() writes of a panel
  std::int64_t run_bytes = 0;   // decoded weights that all tiles of a column multiply before the next ones are decoded
  std::int64_t task_bytes = 0;  // packed rows of a task, which column after column of decoded weights meets
  void (*release)() = nullptr;  // called by a thread after its tiles
  int decoded_code_bytes = 0;   // of a code that decode() writes; 0: as bytes_per_code
};

extern const RowFunctions kRowsAvx2;        // gemm_avx2.cpp
extern const RowFunctions kRowsAvx512;      // avx512/gemm_avx512_float.cpp
extern const RowFunctions kRowsNeon;        // neon/gemm_neon.cpp
extern const RowFunctions kRowsGeneric128;  // generic/gemm_generic128.cpp

// One set of kernels for each row of the kernel tables of linear and conv2d.
extern const BlockKernels kInt8Avx2, kInt8W4Avx2, kInt16Avx2, kFloatAvx2;       // gemm_avx2.cpp
extern const BlockKernels kInt8AvxVnni, kInt16AvxVnni;                          // gemm_avxvnni.cpp
extern const BlockKernels kInt8Avx512Vnni, kInt16Avx512Vnni, kFloatAvx512;      // avx512/
extern const BlockKernels kFloatAvx512Bf16;                                     // gemm_avx512bf16.cpp
extern const BlockKernels kInt8Amx;                                             // amx/gemm_amx.cpp
extern const BlockKernels kInt16Amx;                                            // amx/gemm_amx_int16.cpp
extern const BlockKernels kFloatAmx;                                            // amx/gemm_amx_bf16.cpp
extern const BlockKernels kInt8Neon, kInt16Neon, kFloatNeon;                    // neon/gemm_neon.cpp
extern const BlockKernels kInt8NeonDotprod;                                     // neon/gemm_neon_dotprod.cpp
extern const BlockKernels kInt8NeonI8mm;                                        // neon/gemm_neon_i8mm.cpp
extern const BlockKernels kInt8Generic128, kInt16Generic128, kFloatGeneric128;  // generic/

}  // namespace qcore
