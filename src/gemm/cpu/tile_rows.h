#pragma once

#include "gemm/cpu/tile_data.h"
#include "numerics/half_bits.h"
#include "simd/unroll.h"

// Widens rows of x from fp16 and bf16 to fp32, transposes them, and rounds rows of y to the output's dtype.
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

// Transposition and widening at once.
template <class V>
struct Transpose {
  using Float = typename V::Float;
  static constexpr int kSide = V::kLanes;

  // out[column * out_stride + row] = x[row * row_stride + column], fp32, of x fp32, fp16 or bf16. `out` has room for
  // whole vectors of rows; what lies behind the last row is set to zero.
  static void run(const void* x, int dtype, std::int64_t row_stride, std::int64_t rows, std::int64_t columns,
                  float* out, std::int64_t out_stride) {
    if (columns < kSide) {
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t column = 0; column < columns; ++column)
          out[column * out_stride + row] = element(x, dtype, row * row_stride + column);
      return;
    }
    for (std::int64_t begin = 0; begin < columns; begin += kSide) {
      const std::int64_t column = begin + kSide <= columns ? begin : columns - kSide;  // the last one overlaps
      for (std::int64_t row = 0; row < rows; row += kSide) {
        Float square[kSide];
        if (row + kSide <= rows) {  // without a branch for each row the square stays in registers
          load_square(square, x, dtype, row * row_stride + column, row_stride);
        } else {
          for (int i = 0; i < kSide; ++i)
            square[i] = row + i < rows ? load(x, dtype, (row + i) * row_stride + column) : V::set1(0.0f);
        }
        store<0, 0>(square, out + column * out_stride + row, out_stride);
      }
    }
  }

 private:
  QCORE_NUMERIC void load_square(Float (&square)[kSide], const void* x, int dtype, std::int64_t at,
                                 std::int64_t row_stride) {
    const float* floats = static_cast<const float*>(x) + at;
    const std::uint16_t* words = static_cast<const std::uint16_t*>(x) + at;
    if (dtype == kF32)
      repeat<kSide>([&](int i) QCORE_UNROLLED { square[i] = V::load(floats + i * row_stride); });
    else if (dtype == kF16)
      repeat<kSide>([&](int i) QCORE_UNROLLED { square[i] = V::load_half(words + i * row_stride); });
    else
      repeat<kSide>([&](int i) QCORE_UNROLLED { square[i] = V::load_bfloat(words + i * row_stride); });
  }

  QCORE_NUMERIC float element(const void* x, int dtype, std::int64_t at) {
    if (dtype == kF32) return static_cast<const float*>(x)[at];
    const std::uint16_t bits = static_cast<const std::uint16_t*>(x)[at];
    return dtype == kF16 ? numerics::half_to_float(bits) : numerics::bfloat_to_float(bits);
  }

  QCORE_NUMERIC Float load(const void* x, int dtype, std::int64_t at) {
    if (dtype == kF32) return V::load(static_cast<const float*>(x) + at);
    const std::uint16_t* bits = static_cast<const std::uint16_t*>(x) + at;
    return dtype == kF16 ? V::load_half(bits) : V::load_bfloat(bits);
  }

  // Each level of folding halves the vectors and decides one bit of the lane that is left: vectors become columns.
  template <int level, int lane, int count>
  QCORE_NUMERIC void store(Float (&v)[count], float* out, std::int64_t out_stride) {
    if constexpr (count == 1) {
      V::store(out + lane * out_stride, v[0]);
    } else {
      constexpr int kBit = level == 0 ? 2 : level == 1 ? 1 : 1 << level;
      Float low[count / 2], high[count / 2];
      repeat<count / 2>([&](int i) QCORE_UNROLLED {
        low[i] = V::template fold_low<level>(v[2 * i], v[2 * i + 1]);
        high[i] = V::template fold_high<level>(v[2 * i], v[2 * i + 1]);
      });
      store<level + 1, lane>(low, out, out_stride);
      store<level + 1, lane + kBit>(high, out, out_stride);
    }
  }
};

}  // namespace
}  // namespace qcore
