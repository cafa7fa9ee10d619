#pragma once

#include "recurrent/code_numbers.h"

// Declares what the driver of the CPU kernels (driver.cpp) passes to an instruction set; it uses nothing of the
// standard library. Channels are in groups of 16; a group's gates lie together.
namespace qcore {

constexpr std::int64_t kChannelGroup = 16;

// W x or R h as products of signed bytes (weights) with unsigned ones (inputs), which every instruction set multiplies
// exactly. A weight of more than 8 bits is 256 * plane 0 + plane 1 + 128; an input u = code + 2^7 (or + 2^15 =
// 256 * plane 0 + plane 1).
struct CodeProduct {
  const std::int8_t* weights;  // [groups][quads][gates][weight_planes][16][4]
  std::int64_t group_bytes;
  std::int64_t features, quads;  // quads: of features, with zeros to a multiple of 16 features
  int weight_planes, input_planes;
  std::int32_t input_bias;             // u = code + input_bias
  bool narrow;                         // totals without dropped_bits, before and after their shift, fit in int32
  bool shifts_left;                    // some of them
  bool rounds;                         // every total drops a bit: all shifts are to the right, by 1 or more
  int dropped_bits;                    // 8 where totals of two planes by two are computed without them, else 0
  const std::int64_t* offsets;         // [groups][gates][16]: added to the sum of weight * u
  const std::int32_t* narrow_offsets;  // the same without dropped_bits, modulo 2^32
  // Likewise, for sums of weight * (byte - 128) over the planes of u.
  const std::int64_t* signed_offsets;
  const std::int32_t* narrow_signed_offsets;
  const std::int32_t *low_offsets, *low_signed_offsets;  // what dropped_bits leave out
  const std::int32_t *right, *left;  // [groups][gates][16]: shifts, neither negative; `right` less dropped_bits
  const std::int32_t* halves;        // of `rounds`: 2^(right - 1)
  numerics::CodeRange range;         // of the product's codes less their zero point
};

// A table of bytes that do not fall, for vectors of 16-bit lanes that look entries up in registers. An entry is
// `lowest` plus its level, 0 to 255. A straight line in each of 64 segments gives the level or the one below it; the
// first position of the next level tells which.
struct LevelTable {
  static constexpr int kSegments = 64, kLevels = 256;
  std::uint16_t base[kSegments], rise[kSegments];  // of a segment, 256 for each level
  std::uint16_t next[kLevels];                     // first position whose level is higher, or 65535
  std::uint16_t start, span;                       // a position is an index less `start`, within 0 .. span
  int shift;                                       // a position's bits within its segment
  std::int16_t lowest;
};

// A gate's codes in as few bytes as hold them.
struct CellTable {
  const void* entries;
  bool bytes, is_signed;     // bytes: int8 or uint8, else 16 bits
  const LevelTable* levels;  // the same entries; null where it cannot hold them
};

// How wide the cell's numbers are.
enum class LaneWidth : std::uint8_t { narrow, wide_products, scalar };

// The part of a layer that the driver and the products need; an operator's kernels take their own layer, which begins
// with it.
struct RecurrentLayer {
  std::int64_t size, groups;  // H; h has as many channels as `state` has features
  int gates;
  bool half_even;
  bool has_cell;  // a cell state beside h, as the LSTM has
  CodeNumbers x, h, cell_state;
  CodeProduct input, state;
  // A step in two halves: `step` makes codes of H channels, `second` is their product, and `finish_step`, for groups of
  // `second_size` channels, does the rest when all groups of `step` are there.
  bool has_second;
  std::int64_t second_size;
  CodeProduct second;
  LaneWidth width;
};

// Rows of unsigned bytes, one or two planes each: the inputs of products.
struct BytePlanes {
  std::uint8_t* data;
  std::int64_t row_stride, plane_stride;

  std::uint8_t* row(std::int64_t index) const { return data + index * row_stride; }
};

// Elements of a caller's array along one axis.
struct ElementAxis {
  void* data;
  CodeElement element;
  std::int64_t at, stride;
};

// W x of some rows for some groups, as codes less their zero point and `wx_bias`: they fit in 16 bits.
struct InputTile {
  BytePlanes x;
  const std::int64_t* sums;  // of each row's inputs; only where weights have two planes
  std::int64_t rows, first_group, end_group;
  std::int16_t* wx;  // [rows][groups][gates][16]
};

// Where a row's step is written, as offsets in elements, and whether the row has this step: if not its state stays, and
// zeros are written.
struct StepPlace {
  std::int64_t y, gates;
  bool active;
};

// One step of some rows for some groups.
struct StepTile {
  BytePlanes h, next_h;
  BytePlanes second;     // has_second: written by `step`, read by `finish_step`
  std::int32_t* update;  // likewise, [rows][groups][16]: what a cell keeps between the halves
  const std::int64_t* sums;
  std::int64_t rows, first_group, end_group;
  const std::int16_t* wx;
  const StepPlace* places;  // [rows]
  std::int32_t* cell;    // [rows][groups][16], codes less their zero point, read and written; null without a cell state
  ElementAxis y, gates;  // gates: int32; data null for none
};

QCORE_NUMERIC std::int32_t wx_bias(const RecurrentLayer& layer) { return layer.input.range.lo + 32768; }

struct RecurrentKernels {
  // `count` elements as unsigned bytes, and zeros behind them to a multiple of 64; `bias` is u less the centered code.
  void (*pack)(const ElementAxis& from, std::int64_t count, const CodeNumbers& format, std::int32_t bias, int planes,
               const BytePlanes& to);
  void (*unpack)(const BytePlanes& from, std::int64_t count, const CodeNumbers& format, std::int32_t bias, int planes,
                 const ElementAxis& to);
  void (*multiply_inputs)(const RecurrentLayer& layer, const InputTile& tile);
  void (*step)(const RecurrentLayer& layer, const StepTile& tile);
  void (*finish_step)(const RecurrentLayer& layer, const StepTile& tile) = nullptr;  // of layers that have_second
};

}  // namespace qcore
