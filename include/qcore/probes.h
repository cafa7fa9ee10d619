#pragma once

#include <cstdint>

#include "qcore/export.h"

// Limits of this machine, for benchmarks to compare with: work that does nothing but reach them, on the threads that
// CPU kernels use. The caller takes the time. Not part of qcore.h.
namespace qcore {

constexpr std::int64_t kProbeReadUnit = 1 << 20;

// Reads every byte once, each thread along `streams` (1, 2, 4 or 8) places at a time; the result depends on every byte.
// Throws ValueError unless bytes is a positive multiple of kProbeReadUnit and streams is one of those.
QCORE_API std::uint64_t probe_read(const void* data, std::int64_t bytes, int streams);

// Multiply-adds on registers in the widest instructions in use: int8 with int32 sums, and float32. Return the
// operations done, a multiply-add counting as two; 0 where this instruction set has no such probe.
// Throw ValueError unless rounds is at least 1.
QCORE_API std::int64_t probe_int8_dots(std::int64_t rounds);
QCORE_API std::int64_t probe_float_fmas(std::int64_t rounds);

}  // namespace qcore
