#pragma once

#include <cstdint>

#include "formats/packed_layout.h"
#include "gemm/cpu/tile_data.h"

// What one instruction set contributes to linear on the CPU: packing of activations and a tile of the product. Included
// by files compiled for that set, so it holds plain data and no inline functions but those of PackedLayout.
namespace qcore {

struct TileArguments {
  static constexpr int kMaxPanels = 6;

  const PackedLayout* layout;
  std::int64_t block_steps, last_block_steps;
  const std::uint8_t* codes;  // of the tile's first panel
  TileParameters scales;      // likewise
  TileParameters offsets;     // likewise; null for symmetric weights
  const float* weight_sums;   // likewise; null unless the activations have offsets
  PackedRows rows;
  int panels;                                  // 1 to kMaxPanels
  std::int64_t prefetch_distance[kMaxPanels];  // bytes ahead of each panel's weights; 0 for none
  std::int64_t prefetch_switch_block;          // from this block on, the prefetch goes prefetch_switch_bytes
                                               // further, to the next column; -1 for none
  std::int64_t prefetch_switch_bytes;
  std::int64_t prefetch_parameters;  // likewise of scales and offsets, in elements; 0 for none
  std::int64_t first_block;          // blocks [first_block, end_block) are added; a tile that does not start at block 0
  std::int64_t end_block;            // continues from what is in `out`
  const float* decoded;              // fp32 weights of these blocks, by TileKernels::decode; null: decode on the way
  std::int64_t decoded_steps;        // of one panel
  float* out;                        // [rows][panels * 16]

  QCORE_INLINE int row_count() const { return rows.rows; }
};

struct TileKernels {
  int max_rows;        // of a tile
  int max_panels;      // likewise
  int max_products;    // largest rows * panels
  int bytes_per_code;  // in PackedRows::codes: 1, 2, or 4 for float activations
  // Converts `count` contiguous elements (fp16 or bf16) to fp32.
  void (*widen)(const void* data, int dtype, std::int64_t count, float* out);
  // Quantizes (or, for float activations, places) row `slot` of `rows`; `values` are [K].
  void (*pack_row)(const float* values, const PackedLayout& layout, int mode, int slot, const PackedRows& rows);
  void (*tile)(const TileArguments& arguments);
  // For float activations: writes the weights of the tile's blocks, [panels][k][16]. Null: the tile takes codes only.
  void (*decode)(const TileArguments& arguments, float* out);
  // Finishes `columns` contiguous results of one row: bias, clamp, rounding to the output's dtype.
  void (*store_row)(const float* values, std::int64_t columns, const OutputRow& row);
};

// One set of tile kernels for each CPU row of linear's kernel table.
extern const TileKernels kInt8Avx2, kInt8W4Avx2, kInt16Avx2, kFloatAvx2;   // linear_avx2.cpp
extern const TileKernels kInt8AvxVnni, kInt16AvxVnni;                      // linear_avxvnni.cpp
extern const TileKernels kInt8Avx512Vnni, kInt16Avx512Vnni, kFloatAvx512;  // linear_avx512vnni.cpp
extern const TileKernels kFloatAvx512Bf16;                                 // linear_avx512bf16.cpp

}  // namespace qcore
