#pragma once

#include "numerics/lut_eval.h"

// Tables in the CPU's memory. Included by files for one instruction set.
namespace qcore {

// Layout of a table of at most 11 intervals and 259 fp16 entries in vector registers. The number of segments is a
// power of two: then p <= len_i without a comparison, since len_i times 1 + 2^-24 is rounded to len_i.
struct alignas(64) LutRegisters {
  static constexpr int kIntervals = 11, kCutVectors = 12, kLanes = 16, kInner = 256, kEdges = 32;
  static constexpr float kCount = 8388608.0f;  // 2^23: a float of that size counts in its lowest bits

  float cuts[kLanes];                 // infinite beyond the last one
  float cuts_rotated[3][kLanes];      // by 1, 2 and 3
  float cut_vectors[kCutVectors][8];  // cuts 1 to 12, eight times each
  float scales[kLanes];
  float firsts[kLanes];              // plus kCount
  std::uint16_t inner[kInner];       // fp16, entries 0 to 255
  std::uint16_t inner_next[kInner];  // entries 1 to 256
  std::uint16_t edges[kEdges];       // entries 256 to 258, then nothing
  std::uint16_t edges_next[kEdges];
  float low, high;
};

struct LutArrays {
  numerics::LutView view;
  numerics::LutReduction reduction;
  const LutRegisters* registers;  // or null
};

}  // namespace qcore
