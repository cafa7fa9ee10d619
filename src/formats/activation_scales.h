#pragma once

#include <cstdint>

#include "formats/row_view.h"

namespace qcore {

// How the codes of a product's x [M, K] are found.
//   per_block  each block of the weight has a scale of its own (and an offset, for int8_asym)
//   per_row    one scale for all of a row
//   fixed      one scale for all of x, with codes in [-128, 127]; a block with a NaN or an infinity is poisoned
//   given      x holds codes, whose scales are in an array
struct ActivationScales {
  enum class Source : std::uint8_t { per_block, per_row, fixed, given };

  Source source = Source::per_block;
  float fixed = 0.0f;
  RowView scales, offsets;            // given: fp32 [M, S]; offsets for int8_asym only
  std::int64_t blocks_per_scale = 1;  // given: of the weight

  bool given() const { return source == Source::given; }
};

}  // namespace qcore
