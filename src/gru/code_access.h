#pragma once

#include <cmath>

#include "formats/element.h"
#include "numerics/gru_cell.h"
#include "qcore/gru.h"

namespace qcore {

// What a format means to elements that may be codes (int8, int16) or numbers (fp32, fp16, bf16).
struct CodeFormat {
  float per_unit = 1, unit = 1;  // 2^exponent, 2^-exponent
  std::int32_t zero = 0;
  numerics::GruRange range{};  // of codes less their zero point

  CodeFormat() = default;
  explicit CodeFormat(const FixedFormat& format)
      : per_unit(std::ldexp(1.0f, format.exponent)),
        unit(std::ldexp(1.0f, -format.exponent)),
        zero(format.zero_point),
        range{format.lowest() - format.zero_point, format.highest() - format.zero_point} {}
};

inline DType code_dtype(const FixedFormat& format) { return format.bits <= 8 ? DType::i8 : DType::i16; }

// A code less its zero point.
QCORE_NUMERIC std::int32_t load_centred(const void* data, DType dtype, std::int64_t at, const CodeFormat& format) {
  switch (dtype) {
    case DType::i8:
      return static_cast<const std::int8_t*>(data)[at] - format.zero;
    case DType::i16:
      return static_cast<const std::int16_t*>(data)[at] - format.zero;
    default:
      return numerics::fixed_code(load_float(data, dtype, at), format.per_unit, format.range.lo, format.range.hi);
  }
}

QCORE_NUMERIC void store_centred(void* data, DType dtype, std::int64_t at, std::int32_t centred,
                                 const CodeFormat& format) {
  switch (dtype) {
    case DType::i8:
      static_cast<std::int8_t*>(data)[at] = static_cast<std::int8_t>(centred + format.zero);
      break;
    case DType::i16:
      static_cast<std::int16_t*>(data)[at] = static_cast<std::int16_t>(centred + format.zero);
      break;
    default:
      store_float(data, dtype, at, numerics::fixed_value(centred, format.unit));
  }
}

}  // namespace qcore
