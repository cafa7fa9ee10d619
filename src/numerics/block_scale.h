#pragma once

#include "numerics/half_bits.h"
#include "numerics/portable.h"

// The parameters and codes of one block: the definition shared by weights and activations, CPU and CUDA.
// All fp32, each operation rounded once.
namespace qcore::numerics {

// value ~ scale * code + offset; code = clamp(rint((value - offset) * inverse)).
struct BlockScale {
  float scale;
  float inverse;  // 0 for a block whose codes are all 0
  float offset;
};

// The largest code, 2^(bits-1) - 1.
QCORE_NUMERIC int code_max(int bits) { return (1 << (bits - 1)) - 1; }

// |x| as bits: integer order is magnitude order and puts Inf, then NaN, above every finite value, so that a
// maximum over it finds the block's largest magnitude and its non-finite values at once.
QCORE_NUMERIC std::uint32_t magnitude_bits(float x) { return float_bits(x) & 0x7fffffffu; }

// Poisoned: makes every result that uses the block NaN.
QCORE_NUMERIC BlockScale nan_block() { return {bits_float(kNaNBits), 0.0f, 0.0f}; }

QCORE_NUMERIC BlockScale symmetric_scale(std::uint32_t max_magnitude_bits, int bits) {
  if (max_magnitude_bits >= kInfinityBits) return nan_block();
  const float scale = bits_float(max_magnitude_bits) / static_cast<float>(code_max(bits));
  const float inverse = 1.0f / scale;
  if (!is_finite(inverse)) return {0.0f, 0.0f, 0.0f};
  return {scale, inverse, 0.0f};
}

QCORE_NUMERIC float asymmetric_step(float lo, float hi, int bits) {
  const float levels = static_cast<float>((1 << bits) - 1);
  const float range = hi - lo;
  return is_finite(range) ? range / levels : hi / levels - lo / levels;
}

// The block spans [lo, hi] exactly: lo gets the smallest code and hi the largest.
QCORE_NUMERIC BlockScale asymmetric_span(float lo, float hi, int bits) {
  const float scale = asymmetric_step(lo, hi, bits);
  return {scale, 1.0f / scale, fma_once(-scale, static_cast<float>(code_max(bits)), hi)};
}

// Adding 0.0f turns -0 into +0, so that the order in which a backend took the maximum leaves no trace.
QCORE_NUMERIC BlockScale constant_block(float value) { return {1.0f, 0.0f, value + 0.0f}; }

// Weights: a block too narrow to have an inverse is stored as the constant `hi`.
QCORE_NUMERIC BlockScale asymmetric_weight_scale(float lo, float hi, int bits) {
  if (lo == hi || !is_finite(1.0f / asymmetric_step(lo, hi, bits))) return constant_block(hi);
  return asymmetric_span(lo, hi, bits);
}

// Activations: such a block counts as zero unless it is exactly constant.
QCORE_NUMERIC BlockScale asymmetric_activation_scale(float lo, float hi, std::uint32_t max_magnitude_bits, int bits) {
  if (max_magnitude_bits >= kInfinityBits) return nan_block();
  if (lo == hi) return constant_block(hi);
  if (!is_finite(1.0f / asymmetric_step(lo, hi, bits))) return {0.0f, 0.0f, 0.0f};
  return asymmetric_span(lo, hi, bits);
}

// The block's parameters rounded to fp16, from where a format keeps them so; its codes follow from the rounded ones. A
// scale below fp16's range makes a block of zeros around the offset.
QCORE_NUMERIC BlockScale half_block(const BlockScale& block) {
  const float scale = half_to_float(float_to_half(block.scale)), offset = half_to_float(float_to_half(block.offset));
  return {scale, block.inverse == 0.0f || scale == 0.0f ? 0.0f : 1.0f / scale, offset};
}

// A weight's block rounded to nearest: of its largest magnitude, or of its bounds.
QCORE_NUMERIC BlockScale nearest_scale(std::uint32_t max_magnitude_bits, float lo, float hi, int bits, bool symmetric,
                                       bool half) {
  const BlockScale block =
      symmetric ? symmetric_scale(max_magnitude_bits, bits) : asymmetric_weight_scale(lo, hi, bits);
  return half ? half_block(block) : block;
}

// Clamping first keeps the rounding trick in its range and changes nothing: the bounds are integers. There is no NaN to
// clamp: a block that holds one has no inverse.
QCORE_NUMERIC int encode(float value, const BlockScale& block, int lowest, int highest) {
  if (block.inverse == 0.0f) return 0;
  float x = (value - block.offset) * block.inverse;
#if defined(__CUDA_ARCH__)
  x = fminf(fmaxf(x, static_cast<float>(lowest)), static_cast<float>(highest));
#else
  x = x < static_cast<float>(lowest) ? static_cast<float>(lowest) : x;
  x = x > static_cast<float>(highest) ? static_cast<float>(highest) : x;
#endif
  return round_to_int_small(x);
}

// The code of a value of a symmetric block, added to the bits of 1.5 * 2^23: what rounding by an addition leaves,
// without a conversion. A block's largest magnitude times its inverse exceeds the largest code by a few units in the
// last place at most, which rounding drops, so nothing is clamped; and in a block whose codes are all 0 the product is
// 0. Only in a poisoned block, whose scale makes every result NaN, may the code be anything.
constexpr std::uint32_t kBiasedZero = 0x4b400000u;
QCORE_NUMERIC std::uint32_t encode_symmetric(float value, const BlockScale& block) {
  return float_bits(value * block.inverse + 12582912.0f);
}

// The same for a scale that did not come from the block, clamped to [-128, 127]; codes of other blocks are in there
// anyway.
QCORE_NUMERIC std::uint32_t encode_clamped(float value, const BlockScale& block) {
  float x = value * block.inverse;
#if defined(__CUDA_ARCH__)
  x = fminf(fmaxf(x, -128.0f), 127.0f);
#else
  x = x < -128.0f ? -128.0f : x > 127.0f ? 127.0f : x;
#endif
  return float_bits(x + 12582912.0f);
}

QCORE_NUMERIC float decode(int code, float scale, float offset) {
  return fma_once(scale, static_cast<float>(code), offset);
}

}  // namespace qcore::numerics
