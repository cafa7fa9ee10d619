#pragma once

#include <cstdint>

namespace qcore {

// Declares what one instruction set does for the probes of qcore/probes.h, on one thread.
struct ProbeKernels {
  // The exclusive or of all 8-byte words; bytes is a multiple of 8 * 4096. Index: log2 of the number of streams.
  std::uint64_t (*read[4])(const char* data, std::int64_t bytes);
  // nullptr: none for this instruction set.
  void (*int8_dots)(std::int64_t rounds);
  std::int64_t int8_operations;  // per round
  void (*float_fmas)(std::int64_t rounds);
  std::int64_t float_operations;
};

extern const ProbeKernels kProbesAvx2, kProbesAvxVnni, kProbesAvx512Vnni;
extern const ProbeKernels kProbesNeon, kProbesNeonDotprod;

}  // namespace qcore
