#pragma once

#include "numerics/elementary.h"

// Attention of one query over the keys [begin, end), in fp32:
//
//   s_j = score(sum_d q_d * k_jd)                                  the sum by fma in the order of d
//   per chunk of kAttentionChunk positions, which start at multiples of it and of which keys outside are left out:
//     m = max s_j,  p_j = exp(s_j - m),  l = sum p_j,  o_d = sum_j p_j * v_jd      o by fma in the order of j
//     l has kAttentionSums partial sums, of the j with j mod kAttentionSums = 0, 1, ..., added by halves
//   the chunks merged in order: M = max(m, m'),  l = fma(l, e^(m - M), l' * e^(m' - M)),  o likewise
//   y_d = o_d * (1 / l)
//
// An int8 cache's elements are code * scale, rounded once.
namespace qcore::numerics {

constexpr int kAttentionChunk = 256;
constexpr int kAttentionSums = 16;

// `soft_cap` 0 means none.
template <class L, class F = typename L::F>
QCORE_NUMERIC F attention_score(F dot, float scale, float soft_cap) {
  const F score = L::mul(dot, L::set(scale));
  if (soft_cap == 0.0f) return score;
  return L::mul(L::set(soft_cap), tanh<L>(L::div(score, L::set(soft_cap))));
}

struct AttentionMerge {
  float largest, old_factor, new_factor;
};

QCORE_NUMERIC AttentionMerge merge_factors(float old_largest, float new_largest) {
  const float largest = ScalarLanes::at_least(old_largest, new_largest);
  return {largest, exp_of_negative<ScalarLanes>(old_largest - largest),
          exp_of_negative<ScalarLanes>(new_largest - largest)};
}

template <class L, class F = typename L::F>
QCORE_NUMERIC F merged(F older, F newer, const AttentionMerge& merge) {
  return L::fma(older, L::set(merge.old_factor), L::mul(newer, L::set(merge.new_factor)));
}

// The first and the exclusive last position that a token sees. `window` 0 means all.
struct KeyRange {
  std::int64_t begin, end;
};

QCORE_NUMERIC KeyRange visible_keys(std::int64_t position, std::int64_t first, std::int64_t window) {
  const std::int64_t lowest = window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
  return {lowest > first ? lowest : first, position + 1};
}

// Adds `count` partial sums by halves; `count` is a power of two.
template <int count>
QCORE_NUMERIC float add_by_halves(float* sums) {
  for (int half = count / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

// The scale of a head in an int8 cache, from its largest magnitude; a NaN if that is not finite.
QCORE_NUMERIC float cache_scale(float largest) { return is_finite(largest) ? largest / 127.0f : bits_float(kNaNBits); }

// Returns the factor that turns an element into its code; 0 where all codes are 0.
QCORE_NUMERIC float cache_factor(float scale) {
  const float factor = 1.0f / scale;
  return scale > 0.0f && is_finite(factor) ? factor : 0.0f;
}

// A code lies within +-127, since the products of `factor` and smaller magnitudes round to at most 127.
QCORE_NUMERIC int cache_code(float x, float factor) { return factor == 0.0f ? 0 : round_to_int_small(x * factor); }

}  // namespace qcore::numerics
