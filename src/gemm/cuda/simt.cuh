#pragma once

#include "formats/packed_weight.h"
#include "formats/row_view.h"
#include "numerics/window.h"
#include "qcore/linear.h"

// Products and convolutions in every compute mode on ordinary cores, with the reference's operations in its order. A
// product of matrices is a window of one tap over as many images of one pixel as there are rows.
namespace qcore {

struct SimtProblem {
  RowView x;  // [images, H, W, groups] rows of K
  RowView y;  // [images, Ho, Wo] rows of all columns
  std::int64_t images = 0, groups = 1;
  numerics::WindowAxis rows, columns;
  const PackedWeight* weight = nullptr;
  TensorView bias;
  ComputeMode compute = ComputeMode::int8;
  FusedActivation activation;
  Device device;
  void* stream = nullptr;
};

// `codes` bounds the quantized activations at a time, `results` the rows of y in a launch; both yield to one image.
void run_simt(const SimtProblem& problem, std::int64_t codes, std::int64_t results);

}  // namespace qcore
