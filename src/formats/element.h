#pragma once

#include <cstdint>

#include "numerics/half_bits.h"
#include "qcore/tensor_view.h"

namespace qcore {

inline bool is_floating(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

// One element of a floating-point array, by its offset in elements.
QCORE_NUMERIC float load_float(const void* data, DType dtype, std::int64_t at) {
  switch (dtype) {
    case DType::f16:
      return numerics::half_to_float(static_cast<const std::uint16_t*>(data)[at]);
    case DType::bf16:
      return numerics::bfloat_to_float(static_cast<const std::uint16_t*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

QCORE_NUMERIC void store_float(void* data, DType dtype, std::int64_t at, float value) {
  switch (dtype) {
    case DType::f16:
      static_cast<std::uint16_t*>(data)[at] = numerics::float_to_half(value);
      break;
    case DType::bf16:
      static_cast<std::uint16_t*>(data)[at] = numerics::float_to_bfloat(value);
      break;
    default:
      static_cast<float*>(data)[at] = value;
  }
}

// One code of activations, int8 or int16.
QCORE_NUMERIC int load_code(const void* data, DType dtype, std::int64_t at) {
  return dtype == DType::i16 ? static_cast<const std::int16_t*>(data)[at] : static_cast<const std::int8_t*>(data)[at];
}

QCORE_NUMERIC void store_code(void* data, DType dtype, std::int64_t at, int code) {
  if (dtype == DType::i16)
    static_cast<std::int16_t*>(data)[at] = static_cast<std::int16_t>(code);
  else
    static_cast<std::int8_t*>(data)[at] = static_cast<std::int8_t>(code);
}

}  // namespace qcore
