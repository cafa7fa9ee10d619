#pragma once

#include <cstdint>
#include <vector>

#include "qcore/export.h"
#include "qcore/tensor_view.h"

// Integers with a power-of-two scale, which the recurrent layers (gru.h, lstm.h) compute with.
namespace qcore {

// Codes of a tensor: real value = (code - zero_point) * 2^-exponent, code in the whole range of `bits`.
struct FixedFormat {
  int bits = 16;  // 2 to 16
  bool is_signed = true;
  int exponent = 0;
  std::int32_t zero_point = 0;

  std::int32_t lowest() const { return is_signed ? -(std::int32_t{1} << (bits - 1)) : 0; }
  std::int32_t highest() const { return (std::int32_t{1} << (is_signed ? bits - 1 : bits)) - 1; }
};

enum class ShiftRounding : std::uint8_t { half_away, half_even };

// Sigmoid and tanh of arguments of more than 8 bits: correctly rounded, or straight lines between 513 knots, at most 2
// codes beside that.
enum class TableKind : std::uint8_t { exact, interp };

// Codes of an argument, counted from its lowest, and the table's values there. The last one is behind the last code.
struct TableKnots {
  std::vector<std::int32_t> starts, values;
};

// codes = clamp(rint(x * 2^exponent) + zero_point): x fp32, fp16 or bf16, codes int8 or int16 of x's shape. Throws
// ValueError naming the first NaN or infinity; on a CUDA device, where `stream` is used, values are not looked at, and
// a NaN becomes the zero point.
QCORE_API void quantize_fixed(const TensorView& x, const FixedFormat& format, const TensorView& codes,
                              void* stream = nullptr);
QCORE_API void dequantize_fixed(const TensorView& codes, const FixedFormat& format, const TensorView& x,
                                void* stream = nullptr);

}  // namespace qcore
