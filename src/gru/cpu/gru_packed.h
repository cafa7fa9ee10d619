#pragma once

#include <memory>
#include <vector>

#include "gru/cpu/vtable.h"
#include "gru/gru_storage.h"

namespace qcore {

// The memory behind a GruLayer, and the layer.
struct GruPacked {
  struct Product {
    std::shared_ptr<void> weights;
    std::vector<std::int64_t> offsets, signed_offsets;
    std::vector<std::int32_t> narrow_offsets, narrow_signed_offsets, right, left;
  };
  Product input, state;
  std::vector<std::uint16_t> tables[3];
  std::vector<std::int32_t> biases[4];
  GruLayer layer;
};

// Sums of the products of two planes are exact in int32 for as many features; null beyond.
constexpr std::int64_t kMaxGruFeatures = 32768;

// Keeps pointers into `gru`, which must outlive the result and not move.
std::shared_ptr<const GruPacked> pack_gru(const GruStorage& gru);

}  // namespace qcore
