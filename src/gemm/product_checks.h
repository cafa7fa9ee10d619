#pragma once

#include <cstdint>

#include "qcore/conv2d.h"

namespace qcore {

// Checks what linear and conv2d are called with once the shape of their result is known, in the name of `op`.
void check_product(const char* op, const TensorView& x, const QuantizedTensor& w, const TensorView* bias,
                   const TensorView& y, const std::int64_t* shape, const FusedActivation& activation);

void check_window(const char* op, const ConvParams& window);

// The shape [N, Co, Ho, Wo] of a convolution of x [N, Ci, H, W] with a weight [Co, Ci / groups, Kh, Kw]; throws, in the
// name of `op`, what is impossible.
void window_shape(const char* op, const TensorView& x, const std::int64_t (&weight)[4], const ConvParams& window,
                  std::int64_t (&shape)[4]);

}  // namespace qcore
