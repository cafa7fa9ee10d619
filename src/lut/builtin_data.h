// Made by scripts/generate_luts.py; a test compares. Do not edit.
#pragma once

#include <cstdint>

#include "qcore/lut.h"

namespace qcore {

struct BuiltinData {
  const char* name;
  LutReduction reduction;
  float cuts[11];
  std::uint16_t values[259];  // fp16
};

inline constexpr BuiltinData kBuiltinLuts[] = {
};

}  // namespace qcore
