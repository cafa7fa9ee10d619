#pragma once

#include <cstdint>

#include "formats/image_view.h"
#include "numerics/window.h"
#include "static/layer.h"

namespace qcore {

// One validated call of a static layer, as every kernel sees it. The rows of a linear layer are pixels under a 1x1
// window.
struct StaticProblem {
  const StaticLayer* layer = nullptr;
  std::int64_t batch = 0;
  numerics::WindowAxis rows, columns;  // H and W
  ImageView x;                         // [N, Ci, H, W], int8 or uint8
  ImageView y;                         // [N, Co, Ho, Wo]; written to through const_cast
  Device device;
  void* stream = nullptr;

  std::int64_t results() const { return batch * rows.output * columns.output; }  // pixels of y
  RowView y_rows() const { return pixel_rows(y, batch, rows.output, columns.output); }
};

}  // namespace qcore
