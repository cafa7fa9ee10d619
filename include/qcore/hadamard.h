#pragma once

#include "qcore/export.h"
#include "qcore/tensor_view.h"

namespace qcore {

// y = x H / sqrt(block) for each `block` consecutive elements of a row, H the Hadamard matrix of that size in
// Sylvester's order. The transform is orthonormal and its own inverse. Sums are fp32 in the order of the fast
// Walsh-Hadamard transform (neighbors first), then multiplied by 1 / sqrt(block) and rounded to y's dtype: every kernel
// gives the same bits. Sums beyond fp32 are infinite.
//   x      fp32, fp16 or bf16 [..., K] on the CPU, any strides
//   block  a power of two that divides K
//   y      [..., K] fp32, fp16 or bf16, any strides without overlap; shares no memory with x
// Throws before anything is written to y.
QCORE_API void hadamard(const TensorView& x, std::int64_t block, const TensorView& y);

}  // namespace qcore
