#pragma once

#include "gemm/cpu/tile_data.h"
#include "numerics/half_bits.h"

// Widens rows of x from fp16 and bf16 to fp32, and rounds rows of y to the output's dtype.
namespace qcore {
namespace {

template <class V>
struct Rows {
  static void widen(const void* data, int dtype, std::int64_t count, float* out) {
    const auto* bits = static_cast<const std::uint16_t*>(data);
    std::int64_t i = 0;
    for (; i + V::kLanes <= count; i += V::kLanes)
      V::store(out + i, dtype == kF16 ? V::load_half(bits + i) : V::load_bfloat(bits + i));
    for (; i < count; ++i)
      out[i] = dtype == kF16 ? numerics::half_to_float(bits[i]) : numerics::bfloat_to_float(bits[i]);
  }

  static void store_row(const float* values, std::int64_t columns, void* out, int dtype) {
    if (dtype == kF32) {
      memcpy(out, values, static_cast<std::size_t>(columns) * sizeof(float));
      return;
    }
    auto* bits = static_cast<std::uint16_t*>(out);
    std::int64_t n = 0;
    for (; n + V::kLanes <= columns; n += V::kLanes) {
      if (dtype == kF16)
        V::store_half(bits + n, V::load(values + n));
      else
        V::store_bfloat(bits + n, V::load(values + n));
    }
    for (; n < columns; ++n)
      bits[n] = dtype == kF16 ? numerics::float_to_half(values[n]) : numerics::float_to_bfloat(values[n]);
  }
};

}  // namespace
}  // namespace qcore
