#pragma once

#include <cstdint>

#include "qcore/export.h"
#include "qcore/quantize.h"
#include "qcore/tensor_view.h"

namespace qcore {

// A 4-bit weight in the layout of AWQ's gemm kernels (docs/awq.md), checked once. It refers to the caller's arrays,
// which must outlive it; immutable, safe to use from many threads and on any stream.
//   qweight  int32 [K, N/8]: word n/8 of row k has column n in nibble (n%8)/2 + 4*(n%2)
//   scales   fp16 [K/g, N]
//   qzeros   int32 [K/g, N/8], as qweight
// Any strides, all on one device. W[k][n] = (u - z) * s.
class QCORE_API AwqDescriptor {
 public:
  // `op`, a literal, begins the messages of errors. Throws ValueError and TypeError.
  static AwqDescriptor create(const TensorView& qweight, const TensorView& scales, const TensorView& qzeros,
                              const char* op = "awq");

  std::int64_t features() const { return qweight_.shape[0]; }                       // K
  std::int64_t columns() const { return scales_.shape[1]; }                         // N
  std::int64_t group_size() const { return qweight_.shape[0] / scales_.shape[0]; }  // g
  Device device() const { return qweight_.device; }

  // Writes W, each product rounded once to fp16, to `out`, fp16 [K, N], any strides without overlap: [N, K] if
  // `transpose`. Shares no memory with the weight.
  void dequantize(const TensorView& out, bool transpose = false, void* stream = nullptr) const;

  // y = x @ W + bias without W in memory, summed in fp32.
  //   x     [..., K] fp32, fp16 or bf16, any strides, on the weight's device
  //   bias  [N] fp32, fp16 or bf16, or null
  //   y     [..., N] fp32, fp16 or bf16, any strides without overlap; shares no memory with the other arrays
  void linear(const TensorView& x, const TensorView* bias, const TensorView& y, void* stream = nullptr) const;

  // The same weight, exactly, in the layout of linear(): scale * (u - 8) + offset. Throws ValueError for a scale that
  // is not finite, on the CPU; on a CUDA device it is taken as it is.
  QuantizedTensor pack(void* stream = nullptr) const;

 private:
  AwqDescriptor() = default;
  const char* op_ = nullptr;
  TensorView qweight_, scales_, qzeros_;
};

}  // namespace qcore
