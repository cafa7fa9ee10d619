#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace qcore {

// y = map[x] for arrays of 16-bit numbers, contiguous and aligned to 16 bytes; x may be y. `map` [65536] is in the
// order of lut16_index().
void run_lut16(const std::uint16_t* map, const void* x, void* y, std::int64_t count, int device, cudaStream_t stream);

// Spreads numbers whose last bits are equal, such as small integers, over the banks of shared memory. Its own inverse.
constexpr std::uint32_t lut16_index(std::uint32_t number) { return number ^ (number >> 5 & 0x3eu); }

constexpr std::int64_t kLut16Bytes = 2 << 16;

}  // namespace qcore
