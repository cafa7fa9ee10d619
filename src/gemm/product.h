#pragma once

#include <cstdint>

#include "formats/packed_weight.h"
#include "formats/row_view.h"
#include "numerics/window.h"
#include "qcore/linear.h"

namespace qcore {

// A product with a per-block weight, as the CPU kernels of linear and conv2d see it. A result is a row of y: sums, over
// the taps of a window, of the rows of x under them times the tap's weights. linear has one tap, and a row of x for
// each result.
struct BlockProduct {
  std::int64_t images = 1, groups = 1;
  numerics::WindowAxis rows, columns;    // of an image
  RowView x;                             // [images * input rows * input columns, groups * K]
  RowView y;                             // [images * output rows * output columns, N]; written to through const_cast
  const PackedWeight* weight = nullptr;  // K of a group, N of all of them
  TensorView bias;                       // [N], rank 0 if there is none
  ComputeMode compute = ComputeMode::int8;
  FusedActivation activation;

  std::int64_t inputs() const { return images * rows.input * columns.input; }
  std::int64_t results() const { return images * rows.output * columns.output; }
  std::int64_t outputs_per_group() const { return weight->layout.n / groups; }
};

// The definition: any format, any shape, plain loops over src/numerics.
void run_product_reference(const BlockProduct& product);

}  // namespace qcore
