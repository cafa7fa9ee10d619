#pragma once

#include "gemm/cuda/sm80_float_mma/arguments.cuh"
#include "gemm/cuda/store_four.cuh"
#include "numerics/block_scale.h"

// From fp32 totals to y.
namespace qcore::sm80_float_mma {

// Columns n .. n + 3 of the tile's row `i`. Sums that are not finite are made again from the definition: infinities
// whose parts cancelled, and sums that were too large before they were scaled.
template <bool kExact, int kPlanes>
class FourColumns {
 public:
  template <class Rows>
  __device__ __forceinline__ static void store(const Arguments& a, const Rows& rows, int i, std::int64_t n,
                                               const float (&totals)[4]) {
    const std::int64_t end = rows.last_column();
    if (rows.first_row() + i >= rows.count() || n >= end) return;
    const std::int64_t at = rows.y_offset(i);
    store_four(a.out, at, n, end, a.store_fours, totals);
    bool finite = true;
#pragma unroll
    for (int j = 0; j < 4; ++j) finite = finite && numerics::is_finite(totals[j]);
    if (kExact && !finite)
      for (std::int64_t column = n; column < n + 4 && column < end; ++column)
        store_epilogue(a.out, at, column, exact_total(a, rows, i, column));
  }

 private:
  template <class Rows>
  __device__ static float exact_total(const Arguments& a, const Rows& rows, int row, std::int64_t n) {
    const std::int64_t panel = n / PackedLayout::kPanelRows, taps = Rows::kWindow ? a.w.taps : 1;
    float total = 0.0f;
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      std::int64_t unit;
      if (!rows.find(row, tap, unit)) continue;
      total = add_tap(a, a.x.values + unit, panel * taps + tap, n, total);
      if (total != total) break;  // a NaN stays one
    }
    return total;
  }

  // `x` is the row under the tap, `matrix` the panel's weights for it.
  __device__ static float add_tap(const Arguments& a, const uint4* x, std::int64_t matrix, std::int64_t n,
                                  float total) {
    const std::int64_t panel = n / PackedLayout::kPanelRows, step_k = a.w.bits == 8 ? 4 : 8;
    const int column = static_cast<int>(n % PackedLayout::kPanelRows);
    const DType dtype = kPlanes > 1 ? DType::bf16 : a.x.dtype;
    for (std::int64_t p = 0; p < a.w.blocks; ++p) {
      const std::int64_t at = a.w.parameter_index(panel, p, column), length = a.w.block_length(p);
      float sum = 0.0f;
      for (std::int64_t i = 0; i < length; ++i) {
        float value = 0.0f;
        for (int plane = 0; plane < kPlanes; ++plane)
          value += load_float(x + plane * a.x.plane_units, dtype, p * a.w.block_size + i);
        const std::int64_t step = matrix * a.w.steps + p * a.w.steps_per_block + i / step_k;
        const int bits = a.w.bits, shift = static_cast<int>(8 * (i % 4) + i % step_k / 4 * 4);
        const std::uint32_t word = a.w.words[step * PackedLayout::kPanelRows + column];
        const int code = static_cast<int>(word >> shift & ((1u << bits) - 1)) - (1 << (bits - 1));
        sum = numerics::fma_once(value, numerics::decode(code, a.w.scales[at], a.w.offsets ? a.w.offsets[at] : 0.0f),
                                 sum);
      }
      total += sum;
    }
    return total;
  }
};

}  // namespace qcore::sm80_float_mma
