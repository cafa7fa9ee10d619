#pragma once

#include "numerics/half_bits.h"
#include "numerics/recurrent/lanes.h"

// Elements of a caller's array, codes or numbers. For files of one instruction set too: nothing of the standard
// library.
namespace qcore {

// Values are DType's; code_access.h checks.
enum class CodeElement : std::uint8_t { f32 = 0, f16 = 1, bf16 = 2, i8 = 3, i16 = 6 };

// Converts between a format's codes (int8, int16) and the numbers that they stand for (fp32, fp16, bf16).
struct CodeNumbers {
  float per_unit = 1, unit = 1;  // 2^exponent, 2^-exponent
  std::int32_t zero = 0;
  numerics::CodeRange range{};  // of codes less their zero point
};

// A code less its zero point.
QCORE_NUMERIC std::int32_t load_centered(const void* data, CodeElement element, std::int64_t at,
                                         const CodeNumbers& format) {
  float value = 0;
  switch (element) {
    case CodeElement::i8:
      return static_cast<const std::int8_t*>(data)[at] - format.zero;
    case CodeElement::i16:
      return static_cast<const std::int16_t*>(data)[at] - format.zero;
    case CodeElement::f16:
      value = numerics::half_to_float(static_cast<const std::uint16_t*>(data)[at]);
      break;
    case CodeElement::bf16:
      value = numerics::bfloat_to_float(static_cast<const std::uint16_t*>(data)[at]);
      break;
    case CodeElement::f32:
      value = static_cast<const float*>(data)[at];
  }
  return numerics::fixed_code(value, format.per_unit, format.range.lo, format.range.hi);
}

QCORE_NUMERIC void store_centered(void* data, CodeElement element, std::int64_t at, std::int32_t centered,
                                  const CodeNumbers& format) {
  const float value = numerics::fixed_value(centered, format.unit);
  switch (element) {
    case CodeElement::i8:
      static_cast<std::int8_t*>(data)[at] = static_cast<std::int8_t>(centered + format.zero);
      break;
    case CodeElement::i16:
      static_cast<std::int16_t*>(data)[at] = static_cast<std::int16_t>(centered + format.zero);
      break;
    case CodeElement::f16:
      static_cast<std::uint16_t*>(data)[at] = numerics::float_to_half(value);
      break;
    case CodeElement::bf16:
      static_cast<std::uint16_t*>(data)[at] = numerics::float_to_bfloat(value);
      break;
    case CodeElement::f32:
      static_cast<float*>(data)[at] = value;
  }
}

}  // namespace qcore
