#pragma once

#include "qcore/export.h"
#include "qcore/quantize.h"
#include "qcore/tensor_view.h"

namespace qcore {

// y[..., :] = w[indices[...], :], each value `scale * code + offset` rounded once to fp32 and then to y's dtype.
//   indices  int32 or int64 [...], any strides, 0 to N - 1. On the CPU they are checked before anything is written; on
//            CUDA an index outside gives a row of NaN, because the host cannot see it.
//   w        [N, K] on the indices' device
//   y        [..., K] fp32, fp16 or bf16, any strides without overlap; shares no memory with indices
// `stream` is a cudaStream_t, ignored on the CPU. Throws before anything is written to y.
QCORE_API void embedding(const TensorView& indices, const QuantizedTensor& w, const TensorView& y,
                         void* stream = nullptr);

}  // namespace qcore
