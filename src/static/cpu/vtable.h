#pragma once

#include <cstdint>

#include "gemm/cpu/tile_data.h"

// Declares what one instruction set contributes to static int8 on the CPU. Included by files compiled for that set, so
// it holds plain data only.
namespace qcore {

// Sums to codes. `lo`, `hi` and `zero_point` are those of unsigned codes: of int8 y, 128 more, and `flip` is 0x80.
struct StaticCodeFormat {
  bool needs_saturation;  // whether products with multipliers could leave int32
  float largest;          // hi - zero_point, what they are cut to then
  int zero_point;
  int lo, hi;
  int sign_xor_mask;
};

// A tile's results over all taps and channels.
struct StaticTileArguments : TilePlace<std::uint8_t> {
  static constexpr int kMaxRows = 6;  // of tiles in vector registers

  std::int64_t taps, steps;     // codes under a tap: 4 * steps of them
  std::uint32_t sign_xor_mask;  // 0x80808080 where codes of x have another sign than the tiles multiply, or 0
  bool x_is_signed;             // for tiles that multiply both
  const std::int8_t* weights;   // of the first panel: [taps][steps][16 channels][4 k]
  std::int64_t panel_bytes;
  const std::int32_t* acc_init;  // what each channel's sum begins with; whole panels
  const float* multipliers;      // likewise
  StaticCodeFormat format;
  int channels;  // to be stored, at most 16 * panels
};

// One row of results of one block of channels, each of which has its own window. Arrays of a value per channel, and the
// weights, are in the order in which interleaving leaves channels: of block / 16 groups of 16, first the first four of
// each, then the next four ...
struct StaticDepthwiseArguments {
  static constexpr int kRows = 4;  // of the kernel, which a dot product takes at once

  const std::uint8_t* const* rows;  // [quads * kRows], in the first column within the image; of its padding: all alike
  const std::int64_t* row_steps;    // likewise, from column to column
  std::int64_t quads;               // of kernel rows
  std::int64_t before, inside;      // columns of the row left of the image, and in it
  std::int64_t columns;             // in all
  const std::uint8_t* padding;      // a column of it
  std::int64_t kernel, stride, dilation;  // along the row
  std::int64_t results;
  int channels;  // at most the block
  std::uint32_t sign_xor_mask;
  const std::int8_t* weights;    // [quads][kernel][block][4 rows]
  const std::int32_t* acc_init;  // [block]
  const float* multipliers;      // [block]
  StaticCodeFormat format;
  std::uint8_t* buffer;  // [quads][columns][block][4]
  std::uint8_t* y;
  std::int64_t y_step;  // from result to result
};

struct StaticTileKernels {
  int max_panels;
  int depthwise_block;  // channels
  void (*tile)(const StaticTileArguments& arguments);
  void (*depthwise)(const StaticDepthwiseArguments& arguments);
  // to[c * to_step + r] = from[r * from_step + c]; the bytes of a column up to `writable` may become anything.
  void (*transpose)(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to, std::int64_t to_step,
                    std::int64_t rows, std::int64_t columns, std::int64_t writable);
  bool signed_codes = false;  // whether the tiles multiply signed codes of x, or unsigned ones
  int max_rows = StaticTileArguments::kMaxRows;
  bool both_signs = false;      // the tiles multiply either as they are
  void (*release)() = nullptr;  // called by a thread after its tiles, if not null
};

extern const StaticTileKernels kStaticAvx2;         // static_avx2.cpp
extern const StaticTileKernels kStaticAvxVnni;      // static_avxvnni.cpp
extern const StaticTileKernels kStaticAvx512Vnni;   // static_avx512vnni.cpp
extern const StaticTileKernels kStaticAmx;          // static_amx.cpp
extern const StaticTileKernels kStaticNeon;         // static_neon.cpp
extern const StaticTileKernels kStaticNeonDotprod;  // static_neon_dotprod.cpp
extern const StaticTileKernels kStaticGeneric128;   // static_generic128.cpp

}  // namespace qcore
