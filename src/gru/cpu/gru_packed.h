#pragma once

#include <memory>
#include <vector>

#include "gru/cpu/vtable.h"
#include "gru/gru_storage.h"
#include "recurrent/cpu/pack.h"

namespace qcore {

// The memory behind a GruLayer, and the layer.
struct GruPacked {
  PackedProduct input, state, reset_gate, second;
  PackedTable tables[3];
  std::vector<std::int32_t> biases[4];
  GruLayer layer;
};

// Keeps pointers into `gru`, which must outlive the result and not move.
std::shared_ptr<const GruPacked> pack_gru(const GruStorage& gru);

}  // namespace qcore
