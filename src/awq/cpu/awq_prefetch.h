#pragma once

#include <cstdint>

#include "numerics/awq.h"
#include "numerics/portable.h"

namespace qcore {
namespace {

constexpr int kAwqLineColumns = 16 * numerics::kAwqColumns;  // of a line of words

// The line of words, `distance` words further on. That may be beyond the last: nothing is read then.
QCORE_NUMERIC void awq_prefetch(const std::uint32_t* words, std::int64_t distance) {
  const auto line = reinterpret_cast<std::uintptr_t>(words) + static_cast<std::uintptr_t>(distance) * sizeof *words;
  __builtin_prefetch(reinterpret_cast<const void*>(line), 0, 3);
}

}  // namespace
}  // namespace qcore
