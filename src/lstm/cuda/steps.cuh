#pragma once

#include "numerics/recurrent/lstm_cell.h"
#include "recurrent/cuda/device_run.cuh"

namespace qcore {

// Says which arithmetic a cell needs (recurrent/cuda/device_cell.cuh).
enum class LstmCellKind : std::uint8_t { any, narrow };

struct LstmSteps : RecurrentSteps {
  numerics::LstmCell cell;
  CodeFormat c;
  DeviceView c0, last_cell;
  LstmCellKind kind;
};

}  // namespace qcore
