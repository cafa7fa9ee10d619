#pragma once

#include "numerics/lanes.h"
#include "numerics/lut_eval.h"

// Tables in the CPU's memory. Included by files for one instruction set.
namespace qcore {

// What a table of at most 16 intervals and 259 fp16 entries looks like in vector registers.
struct alignas(64) LutRegisters {
  static constexpr int kIntervals = 16, kInner = 256, kEdges = 32;

  float cuts[kIntervals];          // infinite beyond the last interval
  float cuts_rotated[3][kIntervals];  // by 4, 2 and 1, for the steps of a binary search
  float scales[kIntervals];
  float lengths[kIntervals];
  std::int32_t firsts[kIntervals];  // less 1, since entry 0 is not an inner one
  std::uint16_t inner[kInner];      // entries 1 to 256, fp16
  std::uint16_t inner_next[kInner];  // entries 2 to 257
  // Of the other entries: element 31 is entry 0, elements 0 and 1 are entries 257 and 258.
  std::uint16_t edges[kEdges];
  std::uint16_t edges_next[kEdges];
  float low, high;
};

struct LutArrays {
  numerics::LutView view;
  numerics::LutReduction reduction;
  const LutRegisters* registers;  // or null
};

}  // namespace qcore
