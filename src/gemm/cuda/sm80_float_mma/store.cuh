#pragma once

#include "gemm/cuda/exact_total.cuh"
#include "gemm/cuda/sm80_float_mma/arguments.cuh"
#include "gemm/cuda/store_four.cuh"

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
      const ExactRow x{a.x.values + unit, kPlanes > 1 ? DType::bf16 : a.x.dtype, kPlanes, a.x.plane_units};
      total = add_exact_tap(a.w, x, panel * taps + tap, n, total);
      if (total != total) break;  // a NaN stays one
    }
    return total;
  }
};

}  // namespace qcore::sm80_float_mma
