#pragma once

#include <cstdint>

namespace qcore::test {

// Instructions of AMX that the emulator has executed since the program began.
struct AmxCounts {
  std::uint64_t configurations, releases, loads, stores, products;
};
AmxCounts amx_counts();

// Returns whether the calling thread's tile registers are in their initial state.
bool amx_is_released();

}  // namespace qcore::test
