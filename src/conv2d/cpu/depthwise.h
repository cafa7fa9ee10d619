#pragma once

#include "gemm/cpu/vtable.h"

namespace qcore {

// Tiles for convolutions whose groups have one channel each.
extern const BlockKernels kDepthwiseAvx2, kDepthwiseFloatAvx2;              // depthwise_avx2.cpp
extern const BlockKernels kDepthwiseAvx512, kDepthwiseFloatAvx512;          // depthwise_avx512.cpp
extern const BlockKernels kDepthwiseNeon, kDepthwiseFloatNeon;              // depthwise_neon.cpp
extern const BlockKernels kDepthwiseGeneric128, kDepthwiseFloatGeneric128;  // depthwise_generic128.cpp

}  // namespace qcore
