#pragma once

#include <cstdint>

#include "formats/packed_layout.h"

// Plain data that drivers hand to the kernels of one instruction set, and no functions.
namespace qcore {

constexpr int kF32 = 0, kF16 = 1;  // DType::f32, DType::f16; any other value is bf16

// Scales or offsets of a weight, as formats/block_parameters.h.
struct TileParameters {
  const void* data;
  bool half;
};

// Where a tile reads and writes, whatever it computes. An operator says layout and x_offset, the driver the rest.
template <class Result>
struct TilePlace {
  const PackedLayout* layout;
  const char* const* x;     // [taps][tap_stride]: under each tap, a row of x for each row of the tile
  std::int64_t tap_stride;  // from tap to tap
  std::int64_t x_offset;    // from there to the channels of the tile's group, in bytes
  int rows;
  int panels;
  Result* out;  // [rows][out_stride]
  std::int64_t out_stride;
};

}  // namespace qcore
