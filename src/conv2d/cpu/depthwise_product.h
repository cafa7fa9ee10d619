#pragma once

#include "gemm/cpu/vtable.h"
#include "gemm/product.h"

namespace qcore {

// Computes a convolution whose groups have one channel each by the tiles of conv2d/cpu/depthwise.h.
void run_depthwise_product(const BlockProduct& product, const BlockKernels& kernels);

}  // namespace qcore
