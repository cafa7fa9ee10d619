#pragma once

#include <cstdint>

#include "qcore/export.h"
#include "qcore/quantize.h"
#include "qcore/tensor_view.h"

namespace qcore {

// Activations x [..., K] as codes: x[..., k] ~ scales[..., p] * codes[..., k] + offsets[..., p], p = k / block_size.
// The arrays are the caller's, on one device, with any strides.
struct QuantizedActivations {
  TensorView codes;                      // [..., K] int8, or int16 if the mode is int16
  TensorView scales;                     // fp32 [..., S], S = ceil(K / block_size)
  TensorView offsets;                    // fp32 [..., S] if the mode is int8_asym, else rank 0
  std::int64_t block_size = 0;           // consecutive k that share a scale, 1 or more; K or more means one per row
  ComputeMode mode = ComputeMode::int8;  // int8, int8_asym or int16

  // Each throws ValueError or TypeError, which names `op` and `argument`, for arrays that do not fit each other; the
  // second one also for arrays that a result for x [..., K] cannot be written to.
  QCORE_API void check(const char* op, const char* argument) const;
  QCORE_API void check_writable(const char* op, const char* argument, const TensorView& x) const;
  // Throws if an array of these shares memory with an input of that name.
  QCORE_API void check_apart(const char* op, const char* argument, const char* input, const TensorView& view) const;
};

struct QuantizeActivationsOptions {
  float scale = 0.0f;      // for int8: the scale of every block, positive and finite; 0: each block's own
  void* stream = nullptr;  // cudaStream_t; ignored on the CPU
};

// Quantizes x as linear() does with its input.
//   int8, int16  scale = largest magnitude / 127 (32767), code = x / scale, rounded to nearest
//   int8_asym    scale = (largest - smallest) / 255, offset such that the smallest has code -128, the largest 127
// With a given scale, codes are clamped to [-128, 127]. A block with a NaN or an infinity gets the scale NaN and codes
// 0; one of zeros, or whose scale has no inverse in fp32, the scale 0.
//   x  [..., K] fp32, fp16 or bf16, any strides
//   y  arrays to write, on x's device, without memory in common with x
// Throws before anything is written.
QCORE_API void quantize_activations(const TensorView& x, const QuantizedActivations& y,
                                    const QuantizeActivationsOptions& options = {});

}  // namespace qcore
