#pragma once

#include "formats/packed_weight.h"
#include "runtime/device.h"

namespace qcore {

// A checked weight on the CPU, and the allocated storage that takes its codes and parameters.
struct QuantizeProblem {
  const TensorView& weight;
  const QuantizeOptions& options;
  PackedWeight& packed;
  Device device = kCpu;
};

// A checked weight [N, K] on the CPU, and its parts in an encoding, contiguous arrays that are written.
struct EncodeProblem {
  const char* op;  // that errors name
  const TensorView& weight;
  const WeightEncoding& encoding;
  std::int64_t block_size;
  Method method;
  const TensorView* importance;
  const EncodedParts& parts;
  Device device = kCpu;
};

// Elements of the weight by (row, k, tap): the rest of a row is [K] or [Ci, Kh, Kw].
struct WeightRows {
  const TensorView& view;

  // In elements.
  std::int64_t offset(std::int64_t row, std::int64_t k, std::int64_t tap) const {
    std::int64_t at = row * view.strides[0] + k * view.strides[1];
    if (view.rank == 4) at += tap / view.shape[3] * view.strides[2] + tap % view.shape[3] * view.strides[3];
    return at;
  }
};

// Quantizes into an encoding, in the name of `op`.
QuantizedTensor encode_weight(const char* op, const TensorView& weight, const WeightEncoding& encoding,
                              std::int64_t block_size, Method method, const TensorView* importance);

// Throws in the name of `op` unless importance is given with Method::awq and no other, and is fp32 [k], finite and not
// negative.
void check_importance(const char* op, Method method, const TensorView* importance, std::int64_t k);

}  // namespace qcore
