#pragma once

#include "lut/fit/problem.h"

namespace qcore::lut_fit {

// The segments of a whole table: segment q lies between entries q and q + 1.
struct TableKnots {
  std::vector<double> at, f, target;  // [entries]; target as in Knots
  std::vector<std::size_t> first;     // the first sample from there on
  std::vector<std::size_t> interval;
  std::vector<int> segment;           // within the interval
  std::vector<IntervalScale> scales;  // [intervals]
  std::vector<std::uint8_t> pinned;   // the entry is f(knot), rounded
};

// For cuts [intervals + 1]; f is interpolated, nothing pinned.
TableKnots table_knots(const Problem& problem, const std::vector<double>& cuts);

// Where a fit of entries starts: at f(knot), which never ends above the error of f(knot), or at the targets, which is
// faster.
enum class Start { f, moved };

// Entries that minimize the error, by dynamic programming over five steps of the lattice around each entry, from
// coarse steps to single ones, until none of them moves. Returns the error, up to `negligible` for each segment.
double fit_entries(const Problem& problem, const TableKnots& knots, Start start, double negligible,
                   std::vector<std::int64_t>& entries, const Progress& progress);

}  // namespace qcore::lut_fit
