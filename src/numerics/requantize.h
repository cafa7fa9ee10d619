#pragma once

#include <math.h>

#include "numerics/portable.h"

// Static int8, as ONNX's QLinearConv and QLinearMatMul define it: codes times codes, and back to codes.
//
//   y = clamp(rint(multiplier * acc) + zero_point),   acc = sum (x - Zx)*(w - Zw) + bias, exact in int32
namespace qcore::numerics {

// (Sx * Sw) / Sy, in this order.
QCORE_NUMERIC float requantize_multiplier(float x_scale, float w_scale, float y_scale) {
  return x_scale * w_scale / y_scale;
}

// `lo` and `hi` are the bounds of the code less its zero point: clamping first keeps the rounding in int32's range, and
// changes nothing, because they are integers.
QCORE_NUMERIC std::int32_t requantize(std::int32_t acc, float multiplier, float lo, float hi, std::int32_t zero_point) {
  float y = static_cast<float>(acc) * multiplier;
  y = y < lo ? lo : y;
  y = y > hi ? hi : y;
  return round_to_int_small(y) + zero_point;
}

}  // namespace qcore::numerics
