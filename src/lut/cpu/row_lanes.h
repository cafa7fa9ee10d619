#pragma once

#include "lut/cpu/lut_lanes.h"

// Softmax and RMSNorm of one fp32 row, for any lanes. Sums have kRowPadding partial sums, element i in i mod
// kRowPadding, which are then added by halves: the same bits whatever the width of the lanes.
namespace qcore {
namespace {

template <class L>
struct PartialSums {
  static constexpr int kVectors = kRowPadding / L::kWidth;
  typename L::F sums[kVectors];

  QCORE_INLINE PartialSums() {
    for (auto& sum : sums) sum = L::set(0.0f);
  }
  QCORE_INLINE float total() const {
    alignas(64) float lanes[kRowPadding];
    for (int v = 0; v < kVectors; ++v) L::store(lanes + v * L::kWidth, sums[v]);
    for (int half = kRowPadding / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
  }
};

QCORE_NUMERIC std::int64_t pad_row(float* row, std::int64_t count, float value) {
  const std::int64_t padded = (count + kRowPadding - 1) / kRowPadding * kRowPadding;
  for (std::int64_t i = count; i < padded; ++i) row[i] = value;
  return padded;
}

template <class L>
QCORE_NUMERIC typename L::F plain_nan(typename L::F x) {
  return L::select(L::is_nan(x), L::from_bits(L::set(static_cast<std::int32_t>(numerics::kNaNBits))), x);
}

QCORE_NUMERIC float look_up_one(LutReduction reduction, float x, const LutArrays& table) {
  return reduction == LutReduction::rsqrt
             ? numerics::lut_eval<LutReduction::rsqrt, numerics::ScalarLanes>(x, table.view)
             : numerics::lut_eval<LutReduction::reciprocal, numerics::ScalarLanes>(x, table.view);
}

// Padding of -inf adds nothing to the sum.
template <class L, class ExpTable>
QCORE_NUMERIC void softmax_lanes(float* row, std::int64_t count, const ExpTable& exp, const LutArrays& reciprocal) {
  const std::int64_t padded = pad_row(row, count, -numerics::bits_float(numerics::kInfinityBits));
  typename L::F largest = L::load(row);
  for (std::int64_t i = 0; i < padded; i += L::kWidth) largest = L::at_least(L::load(row + i), largest);
  alignas(64) float lanes[L::kWidth];
  L::store(lanes, largest);
  float most = lanes[0];
  for (const float lane : lanes) most = numerics::ScalarLanes::at_least(lane, most);

  PartialSums<L> partial;
  look_up_blocks<L, LutReduction::exp>(
      padded, exp, [&](std::int64_t i) { return L::sub(L::load(row + i), L::set(most)); },
      [&](std::int64_t i, typename L::F y) {
        auto& sum = partial.sums[i / L::kWidth % PartialSums<L>::kVectors];
        sum = L::add(sum, y);
        L::store(row + i, y);
      });
  const auto scale = L::set(look_up_one(LutReduction::reciprocal, partial.total(), reciprocal));
  for (std::int64_t i = 0; i < padded; i += L::kWidth) L::store(row + i, plain_nan<L>(L::mul(L::load(row + i), scale)));
}

template <class L>
QCORE_NUMERIC void rms_norm_lanes(float* row, const float* weight, std::int64_t count, float eps,
                                  const LutArrays& rsqrt) {
  const std::int64_t padded = pad_row(row, count, 0.0f);
  PartialSums<L> partial;
  for (std::int64_t i = 0; i < padded; i += kRowPadding)
    for (int v = 0; v < PartialSums<L>::kVectors; ++v) {
      const auto x = L::load(row + i + v * L::kWidth);
      partial.sums[v] = L::fma(x, x, partial.sums[v]);
    }
  const float mean = partial.total() / static_cast<float>(count);
  const auto scale = L::set(look_up_one(LutReduction::rsqrt, mean + eps, rsqrt));
  for (std::int64_t i = 0; i < padded; i += L::kWidth) {
    auto y = L::mul(L::load(row + i), scale);
    if (weight) y = L::mul(y, L::load(weight + i));
    L::store(row + i, plain_nan<L>(y));
  }
}

}  // namespace
}  // namespace qcore
