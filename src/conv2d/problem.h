#pragma once

#include <cstdint>

#include "formats/image_view.h"
#include "gemm/product.h"
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
  ComputeMode compute = ComputeMode::int8;
  FusedActivation activation;
  Device device;
  void* stream = nullptr;
  // The arguments of conv2d(), for a row that hands the call on.
  const TensorView *x_view = nullptr, *y_view = nullptr, *bias_view = nullptr;
  const QuantizedTensor* quantized = nullptr;

  std::int64_t outputs_per_group() const { return weight->layout.n / groups; }
  // Returns the call as the CPU kernels see it. Along an axis with one tap and without padding, elements between
  // results are left out.
  BlockProduct product() const {
    BlockProduct product{batch, groups, rows, columns, {}, {}, weight, bias, compute, activation, {}};
    ImageView seen = x;
    skip_unseen(product.rows, seen.row);
    skip_unseen(product.columns, seen.column);
    product.x = pixel_rows(seen, batch, product.rows.input, product.columns.input);
    product.y = pixel_rows(y, batch, rows.output, columns.output);
    return product;
  }
  bool is_product() const {  // of each pixel with a matrix: 1x1, stride 1, no padding
    return groups == 1 && rows.kernel == 1 && columns.kernel == 1 && rows.stride == 1 && columns.stride == 1 &&
           rows.before == 0 && columns.before == 0 && rows.output == rows.input && columns.output == columns.input;
  }

 private:
  static void skip_unseen(numerics::WindowAxis& axis, std::int64_t& spacing) {
    if (axis.kernel != 1 || axis.before != 0 || (axis.output - 1) * axis.stride >= axis.input) return;
    spacing *= axis.stride;
    axis.stride = 1;
    axis.input = axis.output;
  }
};

}  // namespace qcore
