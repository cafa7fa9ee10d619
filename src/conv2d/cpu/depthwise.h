#pragma once

#include "gemm/cpu/vtable.h"

namespace qcore {

// The arguments of depthwise tiles, those of all tiles among them.
struct DepthwiseTileArguments : BlockTileArguments {
  const float* weights;  // one per channel and tap
  std::int64_t weights_tap, weights_panel;
  // Whether the kernel has three taps in each row, and the next result's pixels are a tap ahead. Then x has one pointer
  // for each row of the kernel, to the first pixel under it, and the others follow, tap_stride bytes apart.
  bool slides;
  int out_dtype;  // of `out`
};

// Tiles for convolutions whose groups have one channel each.
extern const BlockKernels kDepthwiseAvx2, kDepthwiseFloatAvx2;              // depthwise_avx2.cpp
extern const BlockKernels kDepthwiseAvx512, kDepthwiseFloatAvx512;          // depthwise_avx512.cpp
extern const BlockKernels kDepthwiseNeon, kDepthwiseFloatNeon;              // depthwise_neon.cpp
extern const BlockKernels kDepthwiseGeneric128, kDepthwiseFloatGeneric128;  // depthwise_generic128.cpp

}  // namespace qcore
