#pragma once

#include "gemm/cpu/tile_data.h"
#include "numerics/half_bits.h"

// Widens rows of x from fp16 and bf16 to fp32, and finishes rows of y: bias, clamp and the output's dtype.
namespace qcore {
namespace {

template <class V>
struct Rows {
  using Float = typename V::Float;

  static void widen(const void* data, int dtype, std::int64_t count, float* out) {
    const auto* bits = static_cast<const std::uint16_t*>(data);
    std::int64_t i = 0;
    for (; i + V::kLanes <= count; i += V::kLanes)
      V::store(out + i, dtype == kF16 ? V::load_half(bits + i) : V::load_bfloat(bits + i));
    for (; i < count; ++i)
      out[i] = dtype == kF16 ? numerics::half_to_float(bits[i]) : numerics::bfloat_to_float(bits[i]);
  }

  static void store_row(const float* values, std::int64_t columns, const OutputRow& row) {
    std::int64_t n = 0;
    const Float lo = V::set1(row.lo), hi = V::set1(row.hi);
    for (; n + V::kLanes <= columns; n += V::kLanes) {
      Float y = V::load(values + n);
      if (row.bias) y = V::add(y, V::load(row.bias + n));
      if (row.clamp) y = V::at_most(V::at_least(y, lo), hi);
      if (row.dtype == kF32) {
        V::store(static_cast<float*>(row.data) + n, y);
      } else if (row.dtype == kF16) {
        V::store_half(static_cast<std::uint16_t*>(row.data) + n, y);
      } else {
        V::store_bfloat(static_cast<std::uint16_t*>(row.data) + n, y);
      }
    }
    for (; n < columns; ++n) {
      float y = values[n];
      if (row.bias) y += row.bias[n];
      if (row.clamp) y = y < row.lo ? row.lo : y > row.hi ? row.hi : y;
      if (row.dtype == kF32)
        static_cast<float*>(row.data)[n] = y;
      else
        static_cast<std::uint16_t*>(row.data)[n] =
            row.dtype == kF16 ? numerics::float_to_half(y) : numerics::float_to_bfloat(y);
    }
  }
};

}  // namespace
}  // namespace qcore
