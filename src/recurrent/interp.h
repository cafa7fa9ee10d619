#pragma once

#include <cstdint>
#include <vector>

#include "qcore/recurrent/fixed_format.h"

namespace qcore {

constexpr int kInterpSegments = 512;
constexpr std::int32_t kMaxInterpError = 2;

// Knots of a monotonically non-decreasing table, of 2^9 to 2^16 codes. Segments are dyadic intervals of codes; of the
// segments there are, the one with the largest error is halved until there are kInterpSegments.
TableKnots interp_knots(const std::vector<std::int32_t>& exact);

// The entry for each code that straight lines between the knots give.
std::vector<std::int32_t> expand_knots(const TableKnots& knots);

std::int32_t largest_difference(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b);

}  // namespace qcore
