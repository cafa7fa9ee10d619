#pragma once

#include <cstdint>

#include "qcore/export.h"
#include "qcore/quantize.h"
#include "qcore/quantized_activations.h"
#include "qcore/tensor_view.h"

namespace qcore {

enum class ActivationKind : std::uint8_t { none, clamp, silu, gelu, tanh, sigmoid, gelu_tanh };

// Applied to the fp32 result before it is rounded to the output dtype. relu is clamp(0, inf); gelu is the form with
// erf. tanh, sigmoid and gelu_tanh have the same bits on every device.
struct FusedActivation {
  ActivationKind kind = ActivationKind::none;
  float lo = 0.0f;
  float hi = 0.0f;
};

using Activation = FusedActivation;  // its earlier name

struct LinearOptions {
  ComputeMode compute = ComputeMode::int8;  // unless x is quantized already
  float x_scale = 0.0f;  // for int8: the scale of all codes of x, as of quantize_activations(); 0: what compute says
  FusedActivation activation;
  void* stream = nullptr;  // cudaStream_t; ignored on the CPU
};

// y = act(x @ W^T + bias).
//   x     [..., K] fp32, fp16 or bf16, any strides
//   w     [N, K] on x's device
//   bias  [N] fp32, fp16 or bf16, or null
//   y     [..., N] fp32, fp16 or bf16, any strides without overlap; shares no memory with x or bias
// Throws before anything is written to y.
QCORE_API void linear(const TensorView& x, const QuantizedTensor& w, const TensorView* bias, const TensorView& y,
                      const LinearOptions& options);

// The same with x as codes, in the mode that they have. Their blocks are K long or more, or a multiple of the weight's.
QCORE_API void linear(const QuantizedActivations& x, const QuantizedTensor& w, const TensorView* bias,
                      const TensorView& y, const LinearOptions& options);

}  // namespace qcore
