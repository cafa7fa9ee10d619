#pragma once

#include "recurrent/cuda/device_layer.h"

namespace qcore {

constexpr int kRowChannels = 128, kRowSteps = kRowChannels / kStepK;  // that one thread block has, at most
constexpr int kRowAhead = 8;  // steps whose W x is in shared memory or on its way there

// How a thread block runs all steps of one row: warps that multiply come first, then those that store and fetch.
struct RowPlan {
  int product_warps;
  int tables[kMaxTables];  // where they begin in shared memory
};

// Whether a thread block's registers hold R: an LSTM's with weights of two planes would leave too few to the cell.
constexpr bool fits_row_registers(int gates, int weight_planes) { return gates * weight_planes <= 6; }

}  // namespace qcore
