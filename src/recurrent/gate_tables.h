#pragma once

#include <cstdint>
#include <vector>

#include "qcore/recurrent/fixed_format.h"

namespace qcore {

// The correctly rounded code of sigmoid or tanh for each code of `from`, lowest first.
std::vector<std::int32_t> sigmoid_table(const FixedFormat& from, const FixedFormat& to);
std::vector<std::int32_t> tanh_table(const FixedFormat& from, const FixedFormat& to);

// The table that kernels use and, if `kind` is interp and the argument has more than 8 bits, its knots. Throws
// ValueError where straight lines are too far from the function.
std::vector<std::int32_t> gate_table(const char* op, const char* gate, std::vector<std::int32_t> exact,
                                     const FixedFormat& argument, TableKind kind, TableKnots& knots);

}  // namespace qcore
