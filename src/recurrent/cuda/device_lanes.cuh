#pragma once

#include <cuda_runtime.h>

#include "numerics/recurrent/lanes.h"
#include "recurrent/cuda/device_layer.h"

namespace qcore {

// The table's entry on a line of 2^shift entries.
QCORE_NUMERIC std::int32_t line_entry(const TableLine& line, std::int32_t index, int shift) {
  return (line.base + (index & ((1 << shift) - 1)) * line.slope) >> kLineBits;
}

// What the lanes of numerics/recurrent/lanes.h do without products and shifts.
template <class Number>
struct NumberLanes {
  using I = Number;

  QCORE_NUMERIC I add(I a, I b) { return a + b; }
  QCORE_NUMERIC I sub(I a, I b) { return a - b; }
  QCORE_NUMERIC I set(std::int32_t c) { return c; }
  QCORE_NUMERIC I clamped(I a, const numerics::CodeRange& range) {
    a = a < range.lo ? range.lo : a;
    return a > range.hi ? range.hi : a;
  }
};

// The lanes of numerics/recurrent/lanes.h with numbers of 32 bits and products of 64: where recurrent/cpu/pack.h proves
// that they fit, with the shifts of the packed cell. With numbers of 64 bits they are for every cell, because make()
// has proven that no shift leaves int64.
template <numerics::ShiftRounding kRounding, class Number = std::int32_t>
struct DeviceLanes : NumberLanes<Number> {
  using I = Number;
  using Table = RecurrentDeviceTable;

  QCORE_NUMERIC I shifted(I a, int n) { return shift(a, n); }
  QCORE_NUMERIC I shifted_product(I a, I b, int n) {
    return static_cast<I>(shift(static_cast<std::int64_t>(a) * b, n));
  }
  QCORE_NUMERIC I shifted_mix(I a, I b, I c, I d, int n) {
    return static_cast<I>(shift(static_cast<std::int64_t>(a) * b + static_cast<std::int64_t>(c) * d, n));
  }
  QCORE_NUMERIC I shifted_sum(I a, I b, int left, I c, I d, int other, int n) {
    const std::int64_t first = static_cast<std::int64_t>(a) * b * (std::int64_t{1} << left);
    return static_cast<I>(shift(first + static_cast<std::int64_t>(c) * d * (std::int64_t{1} << other), n));
  }
  QCORE_NUMERIC I look_up(const Table& table, I index) {
    const auto at = static_cast<std::int32_t>(index);
    return line_entry(table.lines[at >> table.shift], at, table.shift);
  }
  QCORE_NUMERIC const Table& table(const RecurrentDeviceArrays& arrays, int index) { return arrays.lines[index]; }

  // A row's total at its scale.
  template <class Sum>
  QCORE_NUMERIC I rescaled(Sum sum, Sum offset, int n, const numerics::CodeRange& range) {
    if constexpr (sizeof(Sum) == sizeof(I)) {
      constexpr int kMax = 30;  // drops every bit
      return NumberLanes<Number>::clamped(shift(sum + offset, n < kMax ? n : kMax), range);
    }
    return static_cast<I>(numerics::clamp_code(shift(sum + offset, n), range.lo, range.hi));
  }

  // Where the result is known to fit.
  template <class Integer>
  QCORE_NUMERIC Integer shift(Integer a, int n) {
    if (n <= 0) return a * (Integer{1} << -n);
    const Integer half = Integer{1} << (n - 1);
    if (kRounding == numerics::ShiftRounding::half_away) return (a + half - (a < 0)) >> n;
    return (a + half - 1 + (a >> n & 1)) >> n;
  }
};

// Those of the definition.
template <numerics::ShiftRounding kRounding>
struct DeviceWideLanes : numerics::IntegerLanes<kRounding> {
  using Base = numerics::IntegerLanes<kRounding>;
  QCORE_NUMERIC const std::int32_t* table(const RecurrentDeviceArrays& arrays, int index) {
    return arrays.tables[index];
  }
  QCORE_NUMERIC std::int64_t rescaled(std::int64_t sum, std::int64_t offset, int n, const numerics::CodeRange& range) {
    return Base::clamped(Base::shifted(sum + offset, n), range);
  }
};

}  // namespace qcore
