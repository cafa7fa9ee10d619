#pragma once

#include "numerics/lut_eval.h"

// Tables in the CPU's memory. Included by files for one instruction set.
namespace qcore {

// Layout of a table of at most 11 intervals and 259 fp16 entries in vector registers. The number of segments is a
// power of two: then p <= len_i without a comparison, since len_i times 1 + 2^-24 is rounded to len_i.
struct alignas(64) LutRegisters {
  static constexpr int kIntervals = 11, kCutVectors = 12, kLanes = 16, kInner = 256, kEdges = 32, kCells = 64;
  static constexpr float kCount = 8388608.0f;  // 2^23: a float of that size counts in its lowest bits

  float cuts[kLanes];                 // infinite beyond the last one
  float next_cuts[kLanes];            // one further, and infinite where only the last entry would follow
  float cut_vectors[kCutVectors][8];  // cuts 1 to 12, eight times each
  float scales[kLanes];
  float firsts[kLanes];              // plus kCount
  std::uint16_t inner[kInner];       // fp16, entries 0 to 255
  std::uint16_t inner_next[kInner];  // entries 1 to 256
  std::uint16_t edges[kEdges];       // entries 256 to 258, then nothing
  std::uint16_t edges_next[kEdges];

  // Cells are ranges of x with a number of 6 bits each: of x in [0, 1] the upper bits of its fraction if `unit`,
  // otherwise the upper 16 bits of |x| less cell_base, shifted, at most cell_limit, and 32 more if x < 0. No
  // interval of a cell lies more than cell_steps behind the first one, which `cells` has.
  std::uint16_t cells[kCells];
  std::uint16_t cell_base, cell_shift, cell_limit, cell_factor;  // 2^(16 - cell_shift)
  int cell_steps;
  bool unit;  // the reduction is exp, and the table has all of [0, 1]
  float low, high;
};

struct LutArrays {
  numerics::LutView view;
  numerics::LutReduction reduction;
  const LutRegisters* registers;  // or null
};

}  // namespace qcore
