#pragma once

#include "recurrent/cuda/device_lanes.cuh"
#include "recurrent/cuda/row/row_plan.h"
#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_memory.cuh"

// Lanes of the kernel that has one row of the batch: those of device_lanes.cuh with tables of lines in shared memory,
// and lanes without numbers of 64 bits.
namespace qcore {

struct RowTable {
  ptx::SharedAddress lines;
  std::int32_t shift;
};

struct RowTables {
  RowTable tables[kMaxTables];
};

// Look-ups that both have.
struct RowLookUp {
  using Table = RowTable;
  __device__ __forceinline__ static std::int32_t look_up(const RowTable& table, std::int32_t index) {
    return line_entry(ptx::load_shared_pair<TableLine>(table.lines + 8 * (index >> table.shift)), index, table.shift);
  }
  QCORE_NUMERIC const RowTable& table(const RowTables& all, int index) { return all.tables[index]; }
};

struct RowLanes : DeviceLanes<numerics::ShiftRounding::half_away> {
  using Shift = std::int32_t;
  using Table = RowTable;
  __device__ __forceinline__ static I look_up(const Table& table, I index) { return RowLookUp::look_up(table, index); }
  QCORE_NUMERIC const Table& table(const RowTables& all, int index) { return all.tables[index]; }
};

// A shift by n in three instructions, (a * times + half - (a < 0)) >> right: one to the left is one by a bit more,
// followed by one to the right by 1.
struct NarrowShift {
  std::int32_t times, half, right;

  NarrowShift() = default;
  __device__ __forceinline__ NarrowShift(std::int32_t n) {  // NOLINT: shifts are numbers elsewhere
    constexpr int kMax = 30;                                // drops every bit
    right = ptx::opaque(n < 1 ? 1 : n < kMax ? n : kMax);
    times = ptx::opaque(n < 1 ? 1 << (1 - n) : 1);
    half = ptx::opaque(1 << (right - 1));
  }
};

// Where recurrent/cpu/pack.h proves that all numbers, and products too, are below 2^29 after their shifts to the left.
struct NarrowLanes : NumberLanes<std::int32_t>, RowLookUp {
  using Shift = NarrowShift;

  QCORE_NUMERIC I shifted(I a, const Shift& by) { return (a * by.times + by.half + (a >> 31)) >> by.right; }
  QCORE_NUMERIC I shifted_product(I a, I b, const Shift& by) { return shifted(a * b, by); }
  QCORE_NUMERIC I shifted_mix(I a, I b, I c, I d, const Shift& by) { return shifted(a * b + c * d, by); }
  QCORE_NUMERIC I shifted_sum(I a, I b, int left, I c, I d, int other, const Shift& by) {
    return shifted(a * b * (1 << left) + c * d * (1 << other), by);
  }
  QCORE_NUMERIC I rescaled(I sum, I offset, const Shift& by, const numerics::CodeRange& range) {
    return clamped(shifted(sum + offset, by), range);
  }
};

}  // namespace qcore
