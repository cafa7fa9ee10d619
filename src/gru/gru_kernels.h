#pragma once

#include <cstdint>

#include "gru/code_access.h"
#include "gru/gru_packed.h"

// What the driver of the CPU kernels (gru_cpu.cpp) asks of an instruction set.
namespace qcore {

// Rows of unsigned bytes, one or two planes each: the inputs of products.
struct GruPlanes {
  std::uint8_t* data;
  std::int64_t row_stride, plane_stride;

  std::uint8_t* row(std::int64_t index) const { return data + index * row_stride; }
};

// Elements of a caller's array along one axis.
struct GruElements {
  void* data;
  DType dtype;
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

inline std::int32_t gru_wx_bias(const GruPacked& packed) { return packed.input.range.lo + 32768; }

struct GruKernels {
  // `count` elements as unsigned bytes, and zeros behind them to a multiple of 64; `bias` is u less the centred code.
  void (*pack)(const GruElements& from, std::int64_t count, const CodeFormat& format, std::int32_t bias, int planes,
               const GruPlanes& to);
  void (*unpack)(const GruPlanes& from, std::int64_t count, const CodeFormat& format, std::int32_t bias, int planes,
                 const GruElements& to);
  void (*multiply_inputs)(const GruStorage& gru, const GruPacked& packed, const GruInputTile& tile);
  void (*step)(const GruStorage& gru, const GruPacked& packed, const GruStepTile& tile);
};

extern const GruKernels kGruAvx2, kGruAvxVnni, kGruAvx512Vnni;

}  // namespace qcore
