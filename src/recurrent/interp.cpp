#include "recurrent/interp.h"

#include <algorithm>
#include <cstdlib>
#include <queue>
#include <tuple>

#include "numerics/interp_table.h"

namespace qcore {
namespace {

struct Segment {
  std::int32_t start;
  int shift;           // its length is 2^shift
  std::int32_t worst;  // largest error
  std::int64_t total;  // sum of errors

  // The one to be halved first; the order is total, so that the knots are the same everywhere.
  bool operator<(const Segment& other) const {
    return std::make_tuple(shift > 0, worst, total, -start) <
           std::make_tuple(other.shift > 0, other.worst, other.total, -other.start);
  }
};

// Behind the last code there is none: the last knot repeats its value.
std::int32_t value_at(const std::vector<std::int32_t>& exact, std::int32_t code) {
  return exact[std::min<std::size_t>(code, exact.size() - 1)];
}

Segment segment(const std::vector<std::int32_t>& exact, std::int32_t start, int shift) {
  Segment made{start, shift, 0, 0};
  const std::int32_t first = exact[start], second = value_at(exact, start + (1 << shift));
  for (std::int32_t i = 0; i < 1 << shift; ++i) {
    const std::int32_t error = std::abs(numerics::interpolate(first, second, i, shift) - exact[start + i]);
    made.worst = std::max(made.worst, error);
    made.total += error;
  }
  return made;
}

int log2_of(std::int32_t length) {
  int shift = 0;
  while (std::int32_t{1} << shift < length) ++shift;
  return shift;
}

}  // namespace

TableKnots interp_knots(const std::vector<std::int32_t>& exact) {
  // Halves first, so that no shift is above 15.
  const int shift = log2_of(static_cast<std::int32_t>(exact.size())) - 1;
  std::priority_queue<Segment> open;
  open.push(segment(exact, 0, shift));
  open.push(segment(exact, 1 << shift, shift));
  while (open.size() < kInterpSegments) {
    const Segment widest = open.top();
    open.pop();
    open.push(segment(exact, widest.start, widest.shift - 1));
    open.push(segment(exact, widest.start + (1 << (widest.shift - 1)), widest.shift - 1));
  }
  TableKnots knots;
  for (; !open.empty(); open.pop()) knots.starts.push_back(open.top().start);
  knots.starts.push_back(static_cast<std::int32_t>(exact.size()));
  std::sort(knots.starts.begin(), knots.starts.end());
  for (const std::int32_t start : knots.starts) knots.values.push_back(value_at(exact, start));
  return knots;
}

std::vector<std::int32_t> expand_knots(const TableKnots& knots) {
  std::vector<std::int32_t> table;
  for (std::size_t i = 0; i + 1 < knots.starts.size(); ++i) {
    const std::int32_t length = knots.starts[i + 1] - knots.starts[i];
    const int shift = log2_of(length);
    for (std::int32_t offset = 0; offset < length; ++offset)
      table.push_back(numerics::interpolate(knots.values[i], knots.values[i + 1], offset, shift));
  }
  return table;
}

std::int32_t largest_difference(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace qcore
