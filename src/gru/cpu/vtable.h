#pragma once

#include "gru/code_numbers.h"

// Declares the arguments that the driver of the CPU kernels (gru_cpu.cpp) passes to an instruction set; they use
// nothing of the standard library. Channels are in groups of 16; a group's three gates lie together.
namespace qcore {

constexpr std::int64_t kGruGroup = 16;
constexpr int kGruGates = 3;

// W x or R h as products of signed bytes (weights) with unsigned ones (inputs), which every instruction set multiplies
// exactly. A weight of more than 8 bits is 256 * plane 0 + plane 1 + 128; an input u = code + 2^7 (or + 2^15 =
// 256 * plane 0 + plane 1).
struct GruProduct {
  const std::int8_t* weights;  // [groups][quads][3][weight_planes][16][4]
  std::int64_t group_bytes;
  std::int64_t features, quads;  // quads: of features, with zeros to a multiple of 16 features
  int weight_planes, input_planes;
  std::int32_t input_bias;             // u = code + input_bias
  bool narrow;                         // totals, before and after their shift, fit in int32
  bool shifts_left;                    // some of them
  const std::int64_t* offsets;         // [groups][3][16]: added to the sum of weight * u
  const std::int32_t* narrow_offsets;  // the same, modulo 2^32
  // Likewise, for sums of weight * (byte - 128) over the planes of u.
  const std::int64_t* signed_offsets;
  const std::int32_t* narrow_signed_offsets;
  const std::int32_t *right, *left;  // [groups][3][16]: shifts, neither negative
  numerics::GruRange range;          // of the product's codes less their zero point
};

// A gate's codes in as few bytes as hold them.
struct GruTable {
  const void* entries;
  bool bytes, is_signed;  // bytes: int8 or uint8, else 16 bits
};

// How wide the cell's numbers are.
enum class GruWidth : std::uint8_t { narrow, wide_products, scalar };

struct GruLayer {
  std::int64_t size, groups;  // H
  bool staged, half_even;
  CodeNumbers x, h;
  GruProduct input, state;
  GruWidth width;
  // In lanes of 32 bits. Shifts that drop every bit are the largest that a lane can make.
  numerics::GruCell cell;
  GruTable tables[3];
  const std::int32_t* biases[4];  // [groups][16], as GruBiases; staged pipeline
  // By the definition, where 32 bits are not enough.
  numerics::GruCell scalar_cell;
  const std::int32_t* scalar_tables[3];
  const std::int64_t* scalar_biases[4];  // [H]
  std::int32_t rb_zero;                  // zero point of R h + br as the gates have it
};

// Rows of unsigned bytes, one or two planes each: the inputs of products.
struct GruPlanes {
  std::uint8_t* data;
  std::int64_t row_stride, plane_stride;

  std::uint8_t* row(std::int64_t index) const { return data + index * row_stride; }
};

// Elements of a caller's array along one axis.
struct GruElements {
  void* data;
  CodeElement element;
  std::int64_t at, stride;
};

// W x of some rows for some groups, as codes less their zero point and `wx_bias`: they fit in 16 bits.
struct GruInputTile {
  GruPlanes x;
  const std::int64_t* sums;  // of each row's inputs; only where weights have two planes
  std::int64_t rows, first_group, end_group;
  std::int16_t* wx;  // [rows][groups][3][16]
};

// Where a row's step is written, as offsets in elements, and whether the row has this step: if not its state stays, and
// zeros are written.
struct GruPlace {
  std::int64_t y, gates;
  bool active;
};

// One step of some rows for some groups.
struct GruStepTile {
  GruPlanes h, next_h;
  const std::int64_t* sums;
  std::int64_t rows, first_group, end_group;
  const std::int16_t* wx;
  const GruPlace* places;  // [rows]
  GruElements y, gates;    // gates: int32; data null for none
};

QCORE_NUMERIC std::int32_t gru_wx_bias(const GruLayer& layer) { return layer.input.range.lo + 32768; }

struct GruKernels {
  // `count` elements as unsigned bytes, and zeros behind them to a multiple of 64; `bias` is u less the centered code.
  void (*pack)(const GruElements& from, std::int64_t count, const CodeNumbers& format, std::int32_t bias, int planes,
               const GruPlanes& to);
  void (*unpack)(const GruPlanes& from, std::int64_t count, const CodeNumbers& format, std::int32_t bias, int planes,
                 const GruElements& to);
  void (*multiply_inputs)(const GruLayer& layer, const GruInputTile& tile);
  void (*step)(const GruLayer& layer, const GruStepTile& tile);
};

extern const GruKernels kGruAvx2, kGruAvxVnni, kGruAvx512Vnni;
extern const GruKernels kGruNeon, kGruNeonDotprod;

}  // namespace qcore
