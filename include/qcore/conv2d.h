#pragma once

#include <cstdint>

#include "qcore/export.h"
#include "qcore/linear.h"
#include "qcore/quantize.h"
#include "qcore/tensor_view.h"

namespace qcore {

// Says how a convolution's window moves over an image. Pairs are along H, then W.
struct ConvParams {
  std::int64_t stride[2] = {1, 1};
  std::int64_t padding[4] = {0, 0, 0, 0};  // top, left, bottom, right: elements that count as the real value 0
  std::int64_t dilation[2] = {1, 1};
  std::int64_t groups = 1;  // of channels; each group of outputs sees its own group of inputs
};
using Conv2dWindow = ConvParams;  // the earlier name

struct Conv2dOptions {
  ConvParams window;
  ComputeMode compute = ComputeMode::int8;
  FusedActivation activation;
  void* stream = nullptr;  // cudaStream_t; ignored on the CPU
};

// A two-dimensional convolution (cross-correlation, as every framework has it) with a per-block quantized weight.
//   x     [N, Ci, H, W] fp32, fp16 or bf16, any strides: channels_last is taken as it is
//   w     [Co, Ci / groups, Kh, Kw] on x's device, blocked along its channels
//   bias  [Co] fp32, fp16 or bf16, or null
//   y     [N, Co, Ho, Wo] fp32, fp16 or bf16, any strides without overlap; shares no memory with x or bias
// Convolves x with w. `compute` treats the activations per pixel and block of channels, as linear() does per row and
// block. The result is the fp32 sum over taps (row by row of the kernel), for each over blocks, in the order of
// numerics/block_product.h; padding contributes nothing. Throws before anything is written to y.
QCORE_API void conv2d(const TensorView& x, const QuantizedTensor& w, const TensorView* bias, const TensorView& y,
                      const Conv2dOptions& options);

// The shape [N, Co, Ho, Wo] of the result; throws as conv2d() does for shapes that don't fit.
QCORE_API void conv2d_shape(const TensorView& x, const QuantizedTensor& w, const ConvParams& window,
                            std::int64_t (&shape)[4]);

}  // namespace qcore
