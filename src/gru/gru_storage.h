#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "numerics/recurrent/gru_cell.h"
#include "qcore/gru.h"
#include "recurrent/code_access.h"
#include "recurrent/device_copies.h"
#include "recurrent/parameters.h"

namespace qcore {

struct GruPacked;  // gru_packed.h

// A layer as kernels want it. Arrays over channels are [3H], gate order z, r, g.
struct GruStorage {
  GruParameters parameters;
  CodeFormat x_format, h_format;
  numerics::GruCell cell;
  std::vector<std::int32_t> tables[3];
  GruKnots knots[3];

  // Offsets are -zero_point * sum of the row's weights, and in the fused pipeline the bias.
  PreparedProduct wx, rh;
  // linear_before_reset = 0: rh has the rows of z and r; here are the product of r * h, and its weights [H, H].
  PreparedProduct reset;
  std::vector<std::int16_t> reset_weights;
  std::vector<std::int64_t> biases[4];  // [H] each, as GruBiases has them: z, r, g, rb; staged pipeline

  std::shared_ptr<const GruPacked> packed;  // for the vector kernels; null if they can't have it

  // All of it in one piece of the device's memory, made at its first use.
  const RecurrentDeviceArrays& on_device(int index) const;

 private:
  DeviceCopies copies_;
};

}  // namespace qcore
