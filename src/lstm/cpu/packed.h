#pragma once

#include <memory>
#include <vector>

#include "lstm/cpu/vtable.h"
#include "lstm/storage.h"
#include "recurrent/cpu/pack.h"

namespace qcore {

// The memory behind an LstmLayer, and the layer.
struct LstmPacked {
  PackedProduct input, state, second;
  PackedTable tables[kLstmTables];
  std::vector<std::int32_t> peepholes[kLstmPeepholes];
  LstmLayer layer;
};

// Keeps pointers into `lstm`, which must outlive the result and not move.
std::shared_ptr<const LstmPacked> pack_lstm(const LstmStorage& lstm);

}  // namespace qcore
