#pragma once

#include "simd/unroll.h"
#include "static/cpu/tile.h"

// Convolutions of single channels: four rows of the kernel are interleaved, so that a dot product takes them at once,
// and each column so prepared serves all columns of the kernel.
namespace qcore {
namespace {

template <class V, class Dot, int MaxResults>
struct DepthwiseTile {
  using Int = typename V::Int;
  static constexpr int kBlock = V::kBytes;  // channels: four vectors of sums
  static constexpr int kColumnBytes = 4 * V::kBytes;

  QCORE_NUMERIC void fill(std::uint8_t* to, std::int64_t columns, const Int (&rows)[4]) {
    Int column[4];
    V::interleave(rows, column);
    for (std::int64_t i = 0; i < columns; ++i, to += kColumnBytes)
      repeat<4>([&](int v) QCORE_UNROLLED { V::store(to + v * V::kBytes, column[v]); });
  }

  QCORE_NUMERIC void interleave(const StaticDepthwiseArguments& d, std::int64_t quad) {
    const Int flip = V::set1(static_cast<std::int32_t>(d.sign_xor_mask));
    const Int padding = V::flip(V::load_first_bytes(d.padding, d.channels), flip);
    const Int edge[4] = {padding, padding, padding, padding};
    std::uint8_t* to = d.buffer + quad * d.columns * kColumnBytes;
    fill(to, d.before, edge);
    to += d.before * kColumnBytes;
    const std::uint8_t* from[4];
    std::int64_t step[4];
    repeat<4>([&](int r) QCORE_UNROLLED {
      from[r] = d.rows[4 * quad + r];
      step[r] = d.row_steps[4 * quad + r];
    });
    for (std::int64_t i = 0; i < d.inside; ++i, to += kColumnBytes) {
      Int rows[4];
      repeat<4>([&](int r) QCORE_UNROLLED {
        rows[r] = V::flip(V::load_first_bytes(from[r], d.channels), flip);
        from[r] += step[r];
      });
      fill(to, 1, rows);
    }
    fill(to, d.columns - d.before - d.inside, edge);
  }

  template <int Results>
  QCORE_NUMERIC void multiply(const StaticDepthwiseArguments& d, std::int64_t first) {
    Int acc[Results][4];
    repeat<4>([&](int v) QCORE_UNROLLED {
      const Int start = V::load(d.acc_init + v * V::kLanes);
      repeat<Results>([&](int r) QCORE_UNROLLED { acc[r][v] = start; });
    });
    const std::int8_t* w = d.weights;
    for (std::int64_t quad = 0; quad < d.quads; ++quad) {
      const std::uint8_t* x = d.buffer + (quad * d.columns + first * d.stride) * kColumnBytes;
      for (std::int64_t tap = 0; tap < d.kernel; ++tap, w += kColumnBytes, x += d.dilation * kColumnBytes) {
        repeat<4>([&](int v) QCORE_UNROLLED {
          const typename Dot::Weights weights = Dot::split(V::load(w + v * V::kBytes));
          repeat<Results>([&](int r) QCORE_UNROLLED {
            const std::uint8_t* column = x + r * d.stride * kColumnBytes;
            Dot::multiply(acc[r][v], weights, Dot::operand(V::load(column + v * V::kBytes)));
          });
        });
      }
    }
    if (__builtin_expect(d.format.needs_saturation, 0))
      store<Results, true>(acc, d, first);
    else
      store<Results, false>(acc, d, first);
  }

  template <int Results, bool Cut>
  QCORE_NUMERIC void store(const Int (&acc)[Results][4], const StaticDepthwiseArguments& d, std::int64_t first) {
    repeat<Results>([&](int r) QCORE_UNROLLED {
      Int sums[4];
      repeat<4>([&](int v) QCORE_UNROLLED {
        sums[v] = requantize_sums<V, Cut>(acc[r][v], d.multipliers + v * V::kLanes, d.format);
      });
      V::store_first_bytes(d.y + (first + r) * d.y_step, V::narrow(sums, d.format), d.channels);
    });
  }

  static void run(const StaticDepthwiseArguments& d) {
    for (std::int64_t quad = 0; quad < d.quads; ++quad) interleave(d, quad);
    std::int64_t result = 0;
    for (; result + MaxResults <= d.results; result += MaxResults) multiply<MaxResults>(d, result);
    for (; result < d.results; ++result) multiply<1>(d, result);
  }
};

}  // namespace
}  // namespace qcore
