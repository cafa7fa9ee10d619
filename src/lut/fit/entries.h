#pragma once

#include "lut/fit/problem.h"

namespace qcore::lut_fit {

// The segments of a whole table: segment q lies between entries q and q + 1.
struct TableKnots {
  std::vector<double> at, f;               // [entries]
  std::vector<std::size_t> first;          // the first sample from there on
  std::vector<std::uint8_t> pinned;        // the entry is f(knot), rounded
};

// Positions and first samples for cuts [intervals + 1]; f is interpolated, nothing pinned.
TableKnots table_knots(const Samples& samples, const std::vector<double>& cuts, int segments);

// Entries that minimise the error, by dynamic programming over five steps of the lattice around each entry, from
// coarse steps to single ones, until none of them moves. Starts from `entries` or, if that is empty, from f(knot).
// Returns the error.
double fit_entries(const Problem& problem, const TableKnots& knots, std::vector<std::int64_t>& entries,
                   const Progress& progress);

}  // namespace qcore::lut_fit
