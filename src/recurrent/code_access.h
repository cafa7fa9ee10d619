#pragma once

#include <cmath>

#include "formats/element.h"
#include "qcore/recurrent/fixed_format.h"
#include "recurrent/code_numbers.h"

namespace qcore {

struct CodeFormat : CodeNumbers {
  CodeFormat() = default;
  explicit CodeFormat(const FixedFormat& format) {
    per_unit = std::ldexp(1.0f, format.exponent);
    unit = std::ldexp(1.0f, -format.exponent);
    zero = format.zero_point;
    range = {format.lowest() - format.zero_point, format.highest() - format.zero_point};
  }
};

inline DType code_dtype(const FixedFormat& format) { return format.bits <= 8 ? DType::i8 : DType::i16; }

// Converts the dtype of an array, which has been checked.
QCORE_NUMERIC CodeElement code_element(DType dtype) {
  static_assert(static_cast<int>(DType::f32) == static_cast<int>(CodeElement::f32));
  static_assert(static_cast<int>(DType::f16) == static_cast<int>(CodeElement::f16));
  static_assert(static_cast<int>(DType::bf16) == static_cast<int>(CodeElement::bf16));
  static_assert(static_cast<int>(DType::i8) == static_cast<int>(CodeElement::i8));
  static_assert(static_cast<int>(DType::i16) == static_cast<int>(CodeElement::i16));
  return static_cast<CodeElement>(dtype);
}

QCORE_NUMERIC std::int32_t load_centered(const void* data, DType dtype, std::int64_t at, const CodeNumbers& format) {
  return load_centered(data, code_element(dtype), at, format);
}

QCORE_NUMERIC void store_centered(void* data, DType dtype, std::int64_t at, std::int32_t centered,
                                  const CodeNumbers& format) {
  store_centered(data, code_element(dtype), at, centered, format);
}

}  // namespace qcore
