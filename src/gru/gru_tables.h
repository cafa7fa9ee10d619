#pragma once

#include <cstdint>
#include <vector>

#include "qcore/gru.h"

namespace qcore {

// The correctly rounded code of sigmoid or tanh for each code of `from`, lowest first.
std::vector<std::int32_t> sigmoid_table(const FixedFormat& from, const FixedFormat& to);
std::vector<std::int32_t> tanh_table(const FixedFormat& from, const FixedFormat& to);

}  // namespace qcore
