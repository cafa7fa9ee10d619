#pragma once

#include <cstdint>
#include <vector>

#include "recurrent/cuda/device_layer.h"

namespace qcore {

// A table as lines, blocks of 2^shift neighboring entries on one each: exactly the same codes in little memory. A table
// that is no smooth function has a line for each entry.
struct LineTable {
  std::vector<TableLine> lines;
  int shift = 0;
};

LineTable make_lines(const std::vector<std::int32_t>& codes);

}  // namespace qcore
