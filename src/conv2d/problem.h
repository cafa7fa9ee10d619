#pragma once

#include <cstdint>

#include "formats/image_view.h"
#include "formats/packed_weight.h"
#include "numerics/window.h"
#include "qcore/conv2d.h"

// One validated call of conv2d, as every kernel sees it.
namespace qcore {

struct Conv2dProblem {
  std::int64_t batch = 0;
  std::int64_t groups = 1;
  numerics::WindowAxis rows, columns;    // H and W
  ImageView x;                           // [N, groups * K, H, W]
  ImageView y;                           // [N, Co, Ho, Wo]; written to through const_cast
  const PackedWeight* weight = nullptr;  // n = Co, k = Ci / groups, taps = Kh * Kw
  TensorView bias;                       // [Co], rank 0 if there is none
  Compute compute = Compute::int8;
  Activation activation;
  Device device;
  void* stream = nullptr;
  // What conv2d() was called with, for a row that hands the call on.
  const TensorView *x_view = nullptr, *y_view = nullptr, *bias_view = nullptr;
  const QuantizedTensor* quantized = nullptr;

  std::int64_t outputs_per_group() const { return weight->layout.n / groups; }
  bool is_product() const {  // of each pixel with a matrix: 1x1, stride 1, no padding
    return groups == 1 && rows.kernel == 1 && columns.kernel == 1 && rows.stride == 1 && columns.stride == 1 &&
           rows.before == 0 && columns.before == 0 && rows.output == rows.input && columns.output == columns.input;
  }
};

}  // namespace qcore
