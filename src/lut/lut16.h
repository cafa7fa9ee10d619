#pragma once

#include <cstdint>

namespace qcore {

// y = results[x], of all 65,536 results for 16-bit x. With `past_cache`, y is written past the caches.
void take_lut16(const std::uint16_t* results, const std::uint16_t* x, std::uint16_t* y, std::int64_t count,
                bool past_cache);

}  // namespace qcore
