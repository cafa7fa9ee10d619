#pragma once

#include <vector>

#include "recurrent/cuda/device_layer.h"
#include "recurrent/device_copies.h"
#include "recurrent/parameters.h"

namespace qcore {

// A product's weights [gates * outputs, features]; more rows than the gates have are left out.
struct DeviceProductParts {
  int gates;
  std::int64_t outputs, features;
  const std::vector<std::int16_t>& weights;
  const PreparedProduct& prepared;
};

// A layer's arrays, in the order of DeviceLayer's gates.
struct LayerParts {
  std::int64_t hidden_size;
  int weight_bits;
  std::vector<DeviceProductParts> products;               // w, r, and second where the layer has it
  std::vector<const std::vector<std::int64_t>*> vectors;  // [H] each, or empty; at most kMaxVectors
  std::vector<const std::vector<std::int32_t>*> tables;   // codes; at most kMaxTables
};

// Copies all of it to the device, in one piece.
DeviceCopy upload_layer(int index, const LayerParts& parts);

}  // namespace qcore
