#pragma once

#include "recurrent/cuda/device_layer.h"

namespace qcore {

constexpr int kRowChannels = 128, kRowSteps = kRowChannels / kStepK;  // that one thread block has, at most
constexpr int kRowAhead = 8;               // steps whose W x is in shared memory or on its way there
constexpr int kRowSharedBytes = 48 << 10;  // tables that would need more stay in global memory

// How a thread block runs all steps of one row: warps that multiply come first, then those that store and fetch.
struct RowPlan {
  struct Table {
    int entries, at;  // in shared memory; 0 entries if it is not there
  };
  int product_warps;
  Table tables[kMaxTables];
};

// Whether a thread block's registers hold R: an LSTM's with weights of two planes would leave too few to the cell.
constexpr bool fits_row_registers(int gates, int weight_planes) { return gates * weight_planes <= 6; }

}  // namespace qcore
