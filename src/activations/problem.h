#pragma once

#include "formats/row_view.h"
#include "qcore/quantized_activations.h"

// One validated call of quantize_activations, as every kernel sees it.
namespace qcore {

struct ActivationsProblem {
  RowView x;  // [M, K]
  std::int64_t m = 0, k = 0;
  std::int64_t block_size = 0;  // up to K
  ComputeMode mode = ComputeMode::int8;
  float fixed_scale = 0.0f;  // 0: each block's own
  RowView codes, scales,
      offsets;  // [M, K], [M, S]; written to through const_cast; no data of offsets if there are none
  Device device;
  void* stream = nullptr;
};

// Describes the codes y of x [..., K], of which only shape and device count; the caller adds its rows.
ActivationsProblem activations_problem(const QuantizedActivations& y, const TensorView& x, float scale, void* stream);

}  // namespace qcore
