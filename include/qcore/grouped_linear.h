#pragma once

#include "qcore/export.h"
#include "qcore/linear.h"
#include "qcore/quantize.h"
#include "qcore/tensor_view.h"

namespace qcore {

// Products of mixtures of experts: each row of x is multiplied by the weight of its expert,
// y[r] = act(x[r] @ W_e^T + bias[e]), with the same operations in the same order as linear() has them for W_e.
//   x           [M, K] fp32, fp16 or bf16, any strides; the rows of expert 0 first, then those of expert 1, ...
//   w           [E*N, K] on x's device: the experts' weights after each other, as QuantizedTensor::concatenate stacks
//               them. Any N; on CUDA the kernel on tensor cores takes multiples of 16
//   row_counts  int32 or int64 [E] on x's device, any stride: the number of rows of each expert, 0 or more, M in all
//   bias        [E, N] fp32, fp16 or bf16, or null
//   y           [M, N] fp32, fp16 or bf16, any strides without overlap; shares no memory with x, row_counts or bias
// On the CPU row_counts is checked before anything is written. On CUDA the host does not see it and waits for nothing:
// a negative count is taken as 0, counts beyond M end at M, and rows of y behind the last expert's become NaN.
// Throws before anything is written to y.
QCORE_API void grouped_linear(const TensorView& x, const QuantizedTensor& w, const TensorView& row_counts,
                              const TensorView* bias, const TensorView& y, const LinearOptions& options);

// The same with x as codes, in the mode that they have; see linear().
QCORE_API void grouped_linear(const QuantizedActivations& x, const QuantizedTensor& w, const TensorView& row_counts,
                              const TensorView* bias, const TensorView& y, const LinearOptions& options);

}  // namespace qcore
