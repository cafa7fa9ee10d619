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

// Reads ahead what `at` of the row's elements from `i` on correspond to in the next row.
template <class L>
QCORE_NUMERIC void read_ahead(const LutRow& row, std::int64_t i) {
  if (!row.x_next) return;
  const std::int64_t bytes = row.x_element == LutElement::f32 ? sizeof(float) : sizeof(std::uint16_t);
  for (std::int64_t at = 0; at < L::kWidth * bytes; at += kLine) __builtin_prefetch(row.x_next + i * bytes + at);
}

// Stores value(i), lanes from element i on of a row of y. Lanes behind the end of the row are values of its padding.
template <class L, LutElement kElement, class Value>
QCORE_INLINE void store_values(const LutRow& row, const Value& value) {
  auto* y = static_cast<typename ElementOf<kElement>::Type*>(row.y);
  const auto store_some = [&](std::int64_t i, std::int64_t count) {
    alignas(64) typename ElementOf<kElement>::Type some[L::kWidth];
    store_lanes<L, kElement>(some, value(i), false);
    memcpy(y + i, some, static_cast<std::size_t>(count) * sizeof *y);
  };
  std::int64_t i = 0;
  if (row.past_cache)
    for (const std::int64_t head = before_line(y, row.count); i < head;) {
      const std::int64_t n = head - i < L::kWidth ? head - i : L::kWidth;
      store_some(i, n);
      i += n;
    }
  for (; i + L::kWidth <= row.count; i += L::kWidth) store_lanes<L, kElement>(y + i, value(i), row.past_cache);
  if (i < row.count) store_some(i, row.count - i);
  if (row.past_cache) L::fence();
}

template <class L, class Value>
QCORE_INLINE void store_values(const LutRow& row, const Value& value) {
  switch (row.y_element) {
    case LutElement::f16:
      return store_values<L, LutElement::f16>(row, value);
    case LutElement::bf16:
      return store_values<L, LutElement::bf16>(row, value);
    default:
      return store_values<L, LutElement::f32>(row, value);
  }
}

// Padding of -inf adds nothing to the sum. No result of the look-ups is beyond e^0 = 1.
template <class L, class ExpTable>
QCORE_NUMERIC void softmax_lanes(const LutRow& row, const ExpTable& exp, const LutArrays& reciprocal) {
  float* const values = row.values;
  const float* x = static_cast<const float*>(row.x);
  std::int64_t padded = row.count;
  if (row.x_element != LutElement::f32 || row.count % kRowPadding != 0) {
    load_row<L>(row.x, row.x_element, row.count, values);
    padded = pad_row(values, row.count, -numerics::bits_float(numerics::kInfinityBits));
    x = values;
  }
  typename L::F largest = L::load(x);
  for (std::int64_t i = 0; i < padded; i += L::kWidth) largest = L::at_least(L::load(x + i), largest);
  alignas(64) float lanes[L::kWidth];
  L::store(lanes, largest);
  float most = lanes[0];
  for (const float lane : lanes) most = numerics::ScalarLanes::at_least(lane, most);

  PartialSums<L> partial;
  look_up_blocks<L, LutReduction::exp, false>(
      padded, exp, [&](std::int64_t i) { return L::sub(L::load(x + i), L::set(most)); },
      [&](std::int64_t i, typename L::F y) {
        auto& sum = partial.sums[i / L::kWidth % PartialSums<L>::kVectors];
        sum = L::add(sum, y);
        L::store(values + i, y);
        read_ahead<L>(row, i);
      });
  // The scale is finite, or a NaN because there is one among the values.
  const float scale = look_up_one(LutReduction::reciprocal, partial.total(), reciprocal);
  const auto scales = L::set(scale);
  if (scale == scale)
    store_values<L>(row, [&](std::int64_t i) { return L::mul(L::load(values + i), scales); });
  else
    store_values<L>(row, [&](std::int64_t i) { return plain_nan<L>(L::mul(L::load(values + i), scales)); });
}

template <class L>
QCORE_NUMERIC void rms_norm_lanes(const LutRow& row, const float* weight, float eps, const LutArrays& rsqrt) {
  const float* values = row.values;
  load_row<L>(row.x, row.x_element, row.count, row.values);
  const std::int64_t padded = pad_row(row.values, row.count, 0.0f);
  PartialSums<L> partial;
  for (std::int64_t i = 0; i < padded; i += kRowPadding)
    for (int v = 0; v < PartialSums<L>::kVectors; ++v) {
      const auto x = L::load(values + i + v * L::kWidth);
      partial.sums[v] = L::fma(x, x, partial.sums[v]);
      read_ahead<L>(row, i + v * L::kWidth);
    }
  const float mean = partial.total() / static_cast<float>(row.count);
  const auto scale = L::set(look_up_one(LutReduction::rsqrt, mean + eps, rsqrt));
  store_values<L>(row, [&](std::int64_t i) {
    auto y = L::mul(L::load(values + i), scale);
    if (weight) y = L::mul(y, L::load(weight + i));
    return plain_nan<L>(y);
  });
}

}  // namespace
}  // namespace qcore
