#include <cmath>

#include "formats/element.h"
#include "qcore/gru.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

std::int64_t offset_of(const TensorView& view, std::int64_t index) {
  std::int64_t offset = 0;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    offset += index % view.shape[axis] * view.strides[axis];
    index /= view.shape[axis];
  }
  return offset;
}

void check_pair(const char* op, const char* floats, const TensorView& x, const FixedFormat& format,
                const TensorView& codes) {
  check_floating(op, floats, x);
  check_dtype(op, "codes", codes, format.bits <= 8 ? DType::i8 : DType::i16);
  check_shape(op, "codes", codes, x.rank, x.shape);
  check_device(op, floats, x, kCpu, "codes");
  check_device(op, "codes", codes, kCpu, floats);
  QCORE_CHECK_VALUE(format.is_signed, op, ": the format is unsigned, expected a signed one");
}

}  // namespace

void quantize_fixed(const TensorView& x, const FixedFormat& format, const TensorView& codes) {
  check_pair("quantize_fixed", "x", x, format, codes);
  check_output("quantize_fixed", "codes", codes);
  const std::int64_t count = x.size();
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = load_float(x.data, x.dtype, offset_of(x, i));
    QCORE_CHECK_VALUE(std::isfinite(value), "quantize_fixed: x has ", value, " at flat index ", i,
                      ", expected finite numbers");
  }
  const double scale = std::ldexp(1.0, format.exponent);  // exact; so is the product, unless far out of range
  for (std::int64_t i = 0; i < count; ++i) {
    const double scaled = std::nearbyint(load_float(x.data, x.dtype, offset_of(x, i)) * scale) + format.zero_point;
    const double lowest = format.lowest(), highest = format.highest();
    const auto code = static_cast<std::int32_t>(scaled < lowest ? lowest : scaled > highest ? highest : scaled);
    if (codes.dtype == DType::i8)
      static_cast<std::int8_t*>(codes.data)[offset_of(codes, i)] = static_cast<std::int8_t>(code);
    else
      static_cast<std::int16_t*>(codes.data)[offset_of(codes, i)] = static_cast<std::int16_t>(code);
  }
}

void dequantize_fixed(const TensorView& codes, const FixedFormat& format, const TensorView& x) {
  check_pair("dequantize_fixed", "out", x, format, codes);
  check_output("dequantize_fixed", "out", x);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::int64_t at = offset_of(codes, i);
    const std::int32_t code = codes.dtype == DType::i8 ? static_cast<const std::int8_t*>(codes.data)[at]
                                                       : static_cast<const std::int16_t*>(codes.data)[at];
    store_float(x.data, x.dtype, offset_of(x, i),
                static_cast<float>(std::ldexp(static_cast<double>(code - format.zero_point), -format.exponent)));
  }
}

}  // namespace qcore
