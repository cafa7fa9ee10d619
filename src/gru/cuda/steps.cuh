#pragma once

#include "numerics/recurrent/gru_cell.h"
#include "recurrent/cuda/device_run.cuh"

namespace qcore {

// Says which arithmetic a cell needs (recurrent/cuda/device_cell.cuh), and of the pipelines which.
enum class GruCellKind : std::uint8_t { any, staged, fused };

struct GruSteps : RecurrentSteps {
  numerics::GruCell cell;
  std::int32_t rb_zero;  // of the fourth gate
  DeviceView gates;
  bool fused;
  GruCellKind kind;
};

}  // namespace qcore
