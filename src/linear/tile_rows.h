#pragma once

#include "linear/tile_kernels.h"
#include "numerics/half_bits.h"
#include "simd/unroll.h"

// What happens to rows around the tiles, for the vector set V: widening of x, finishing of y.
namespace qcore {
namespace {

constexpr int kF32 = 0, kF16 = 1;  // DType::f32, DType::f16; what is left is bf16

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
    const Float lo = V::all(row.lo), hi = V::all(row.hi);
    for (; n + V::kLanes <= columns; n += V::kLanes) {
      Float y = V::load(values + n);
      if (row.bias) y = V::add(y, V::load(row.bias + n));
      if (row.clamp) y = V::at_most(V::at_least(y, lo), hi);
      if (row.dtype == kF32) {
        V::store(static_cast<float*>(row.data) + n, y);
      } else if (row.dtype == kF16) {
        V::store_half(static_cast<std::uint16_t*>(row.data) + n, y);
      } else {
        float parts[V::kLanes];
        V::store(parts, y);
        for (int lane = 0; lane < V::kLanes; ++lane)
          static_cast<std::uint16_t*>(row.data)[n + lane] = numerics::float_to_bfloat(parts[lane]);
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

// Picks the instance for the tile's bits, rows and panels.
template <template <int, int> class Tile8, template <int, int> class Tile4, int MaxRows, int MaxPanels, int MaxProducts>
void run_tile_of_size(const TileArguments& arguments) {
  unroll<MaxRows>([&](auto r) QCORE_UNROLLED {
    if (arguments.rows.rows != r.value + 1) return;
    unroll<MaxPanels>([&](auto panels) QCORE_UNROLLED {
      if constexpr ((r.value + 1) * (panels.value + 1) <= MaxProducts) {
        if (arguments.panels != panels.value + 1) return;
        if (arguments.layout->bits == 8)
          Tile8<r.value + 1, panels.value + 1>::run(arguments);
        else
          Tile4<r.value + 1, panels.value + 1>::run(arguments);
      }
    });
  });
}

}  // namespace
}  // namespace qcore
