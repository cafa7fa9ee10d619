#pragma once

#include <cstdint>

namespace qcore::test {

// Returns how often this program and libqcore, which uses its operators, have called operator new.
std::int64_t allocation_count();

}  // namespace qcore::test
