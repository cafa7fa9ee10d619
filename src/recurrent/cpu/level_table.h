#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "recurrent/cpu/vtable.h"

namespace qcore {

// `codes` as levels, or nothing: they fall somewhere, are more than 256 levels apart, or rise so steeply that the lines
// miss an entry. Every entry has been computed as the kernels compute it.
std::optional<LevelTable> make_levels(const std::vector<std::int32_t>& codes);

}  // namespace qcore
