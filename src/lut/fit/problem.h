#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lut/fit/float_lattice.h"
#include "lut/fit/line_error.h"
#include "lut/fit/samples.h"

namespace qcore::lut_fit {

using Progress = std::function<void(double)>;

// Where cuts may lie, in increasing order.
struct Candidates {
  std::vector<double> at, f;
  std::vector<std::size_t> first;            // the first sample from there on
  std::vector<std::uint8_t> required;        // must be a cut
  std::vector<std::size_t> required_before;  // [n + 1]

  std::size_t size() const { return at.size(); }
  bool required_within(std::size_t begin, std::size_t end) const {
    return begin < end && required_before[end] != required_before[begin];
  }
};

struct Problem {
  const Samples& samples;
  const Lattice lattice;
  const int intervals, segments;
  const bool largest, fixed_ends;
  const Candidates candidates;
};

// A table while it is being fitted.
struct Fitted {
  std::vector<std::size_t> cuts;      // indices of candidates [intervals + 1]
  std::vector<std::int64_t> entries;  // on the lattice
  double error = kInfinity;
};

// The ends of the segments of one interval, in place of a table's entries.
struct Knots {
  explicit Knots(int segments)
      : at(static_cast<std::size_t>(segments) + 1), f(at.size()), target(at.size()), first(at.size()) {}
  void place(const Samples& samples, double from, double to, std::size_t first_from, std::size_t first_to);
  // target = f, moved to where a chain of chords has its least error: by `share` of the chords' largest distance to f.
  void move_targets(const Samples& samples, double share);

  std::vector<double> at, f, target;
  std::vector<std::size_t> first;
};

// With errors spread like u * (1 - u) along a chord, moving it by 3/4 of the largest minimizes the sum of magnitudes,
// by 1/2 the largest magnitude.
inline double chord_share(bool largest) { return largest ? 0.5 : 0.75; }

}  // namespace qcore::lut_fit
