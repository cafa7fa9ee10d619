#pragma once

#include <cstdint>

// Plain data that drivers hand to the kernels of one instruction set, and no functions.
namespace qcore {

constexpr int kF32 = 0, kF16 = 1;  // DType::f32, DType::f16; any other value is bf16

// Up to kMaxRows rows of activations in the k order of the packed weight, each block padded like the weight's.
struct PackedRows {
  static constexpr int kMaxRows = 8;
  static constexpr std::int64_t kSlackBytes = 64;  // after each row, for stores of whole vectors

  int rows;
  void* codes;              // [rows][row_stride], or fp32 values in the same places
  std::int64_t row_stride;  // in codes
  float* scales;            // [P][rows]
  float* scaled_sums;       // [P][rows], scale * sum of codes
  float* offsets;           // [P][rows]; null unless the activations have offsets
  std::int32_t* sums;       // [P][rows], of codes
  std::int32_t* acc_init;   // [P][rows], -zero_code * sums, modulo 2^32: corrects for weights stored unsigned
};

// Scales or offsets of a weight, as formats/block_parameters.h.
struct TileParameters {
  const void* data;
  bool half;
};

struct OutputRow {
  void* data;
  int dtype;          // DType
  const float* bias;  // [columns] or null
  bool clamp;
  float lo, hi;
};

}  // namespace qcore
