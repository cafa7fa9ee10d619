#pragma once

#include <vector>

#include "qcore/recurrent/fixed_format.h"
#include "recurrent/cuda/device_layer.h"
#include "recurrent/device_copies.h"
#include "recurrent/parameters.h"

namespace qcore {

// A table's codes, and the format that they have.
struct TableParts {
  const std::vector<std::int32_t>& codes;
  const FixedFormat& format;
};

// A layer's arrays, in the order of DeviceLayer's gates: weights [gates * H, C] and [gates * H, H].
struct LayerParts {
  std::int64_t input_size, hidden_size;
  int gates, weight_bits;
  const std::vector<std::int16_t>&w, &r;
  const PreparedProduct &wx, &rh;
  std::vector<const std::vector<std::int64_t>*> biases;  // [H] each, or empty; at most kMaxBiases
  std::vector<TableParts> tables;                        // at most kMaxTables
};

// Copies all of it to the device, in one piece.
DeviceCopy upload_layer(int index, const LayerParts& parts);

}  // namespace qcore
