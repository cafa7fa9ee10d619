#pragma once

#include <algorithm>
#include <cstdint>

#include "formats/activation_scales.h"
#include "formats/packed_weight.h"
#include "formats/row_view.h"
#include "numerics/window.h"
#include "qcore/linear.h"

namespace qcore {

// A product with per-block weights, as the CPU kernels of linear, grouped_linear and conv2d see it. A result is a row
// of y: sums, over the taps of a window, of the rows of x under them times the tap's weights. linear has one tap, and a
// row of x for each result; so has grouped_linear, whose rows belong to experts, each with a weight of its own.
struct BlockProduct {
  std::int64_t images = 1, groups = 1;
  numerics::WindowAxis rows, columns;    // of an image
  RowView x;                             // [images * input rows * input columns, groups * K]
  RowView y;                             // [images * output rows * output columns, N]; written to through const_cast
  const PackedWeight* weight = nullptr;  // K of a group, N of all of them; the experts' rows after each other
  TensorView bias;                       // [N], of experts [E, N], rank 0 if there is none
  ComputeMode compute = ComputeMode::int8;
  FusedActivation activation;
  ActivationScales scales;                    // of x; without a window, where they are not per block
  std::int64_t experts = 1;                   // with one group
  const std::int64_t* expert_ends = nullptr;  // [E], where each one's rows end; null if there are no experts

  std::int64_t inputs() const { return images * rows.input * columns.input; }
  std::int64_t results() const { return images * rows.output * columns.output; }
  std::int64_t outputs() const { return weight->layout.n / experts; }  // N of y
  std::int64_t outputs_per_group() const { return outputs() / groups; }
  std::int64_t first_row(std::int64_t expert) const { return expert ? expert_ends[expert - 1] : 0; }
  std::int64_t expert_of(std::int64_t row) const {
    return expert_ends ? std::upper_bound(expert_ends, expert_ends + experts, row) - expert_ends : 0;
  }
  // Returns where the bias of a row of the weight lies, in elements.
  std::int64_t bias_place(std::int64_t row) const {
    return bias.rank == 2 ? row / outputs() * bias.strides[0] + row % outputs() * bias.strides[1]
                          : row * bias.strides[0];
  }
};

// The definition: any format, any shape, plain loops over src/numerics.
void run_product_reference(const BlockProduct& product);

}  // namespace qcore
