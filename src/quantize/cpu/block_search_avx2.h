#pragma once

#include <immintrin.h>

#include "quantize/cpu/vtable.h"
#include "simd/vector_avx2.h"

// The search of block_search.cpp for eight blocks at once, one in each lane, so that every lane takes the reference's
// steps in the reference's order and has its bits.
namespace qcore {
namespace {

// Eight doubles.
struct Doubles {
  __m256d low, high;
};
QCORE_NUMERIC Doubles set_doubles(double a) { return {_mm256_set1_pd(a), _mm256_set1_pd(a)}; }
QCORE_NUMERIC Doubles to_doubles(__m256 a) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))};
}
QCORE_NUMERIC __m256 to_floats(Doubles a) { return _mm256_set_m128(_mm256_cvtpd_ps(a.high), _mm256_cvtpd_ps(a.low)); }
QCORE_NUMERIC Doubles add(Doubles a, Doubles b) { return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)}; }
QCORE_NUMERIC Doubles sub(Doubles a, Doubles b) { return {_mm256_sub_pd(a.low, b.low), _mm256_sub_pd(a.high, b.high)}; }
QCORE_NUMERIC Doubles mul(Doubles a, Doubles b) { return {_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)}; }
QCORE_NUMERIC Doubles div(Doubles a, Doubles b) { return {_mm256_div_pd(a.low, b.low), _mm256_div_pd(a.high, b.high)}; }
QCORE_NUMERIC Doubles select(Doubles otherwise, Doubles a, Doubles mask) {
  return {_mm256_blendv_pd(otherwise.low, a.low, mask.low), _mm256_blendv_pd(otherwise.high, a.high, mask.high)};
}
QCORE_NUMERIC Doubles is_less(Doubles a, Doubles b) {
  return {_mm256_cmp_pd(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_pd(a.high, b.high, _CMP_LT_OQ)};
}

// A mask of eight lanes of 64 bits as one of 32 bits, and back.
QCORE_NUMERIC __m256 narrow_mask(Doubles mask) {
  const __m256 even = _mm256_shuffle_ps(_mm256_castpd_ps(mask.low), _mm256_castpd_ps(mask.high), 0x88);
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
}
QCORE_NUMERIC Doubles wide_mask(__m256 mask) {
  const __m256i bits = _mm256_castps_si256(mask);
  return {_mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(bits))),
          _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm256_extracti128_si256(bits, 1)))};
}

struct LaneScales {
  __m256 scale, inverse, offset;
};

template <bool kSymmetric, bool kWeighted>
class LaneSearch {
 public:
  LaneSearch(const SearchedBlocks& blocks, const NearestForm& form)
      : blocks_(blocks),
        half_(form.half),
        lowest_(static_cast<float>(form.lowest)),
        highest_(static_cast<float>(numerics::code_max(form.bits))) {}

  LaneScales run(const LaneScales& start, __m256 lo, __m256 hi) {
    best_ = start;
    Doubles errors[1];
    evaluate<1>(&best_, errors);
    error_ = errors[0];
    kSymmetric ? clip_magnitude(lo, hi) : clip_span(lo, hi);
    __m256 active = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    for (int round = 0; round < 8 && _mm256_movemask_ps(active); ++round) active = polish(active);
    return best_;
  }

  // int8 [count][8].
  void encode(std::int8_t* codes) const {
    for (std::int64_t i = 0; i < blocks_.count; ++i) {
      const __m256i wide = _mm256_cvtps_epi32(rounded(best_, values(i)));
      const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + i * SearchedBlocks::kLanes), _mm_packs_epi16(words, words));
    }
  }

 private:
  static constexpr int kSteps = 24;

  __m256 values(std::int64_t i) const { return _mm256_loadu_ps(blocks_.values + i * SearchedBlocks::kLanes); }

  // The codes as floats; numerics::encode() without its conversion to an integer.
  __m256 rounded(const LaneScales& s, __m256 value) const {
    const __m256 shifted = kSymmetric ? value : _mm256_sub_ps(value, s.offset);
    __m256 x = _mm256_mul_ps(shifted, s.inverse);
    x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(lowest_)), _mm256_set1_ps(highest_));
    const __m256 shift = _mm256_set1_ps(12582912.0f);
    return _mm256_sub_ps(_mm256_add_ps(x, shift), shift);
  }

  __m256 decoded(const LaneScales& s, __m256 code) const {
    return kSymmetric ? _mm256_mul_ps(s.scale, code) : _mm256_fmadd_ps(s.scale, code, s.offset);
  }

  Doubles weighted(std::int64_t i, Doubles a) const {
    return kWeighted ? mul(set_doubles(static_cast<double>(blocks_.importance[i])), a) : a;
  }

  template <int kCount>
  void evaluate(const LaneScales* candidates, Doubles* errors) const {
    Doubles sums[kCount];
    for (int c = 0; c < kCount; ++c) sums[c] = set_doubles(0.0);
    for (std::int64_t i = 0; i < blocks_.count; ++i) {
      const __m256 value = values(i);
      const Doubles wide = to_doubles(value);
      for (int c = 0; c < kCount; ++c) {
        const Doubles difference = sub(wide, to_doubles(decoded(candidates[c], rounded(candidates[c], value))));
        sums[c] = add(sums[c], mul(weighted(i, difference), difference));
      }
    }
    for (int c = 0; c < kCount; ++c) errors[c] = sums[c];
  }

  // The candidate that BlockSearch::consider() makes, and whether it is one.
  __m256 make(__m256 scale, __m256 offset, LaneScales& made) const {
    const __m256 one = _mm256_set1_ps(1.0f), zero = _mm256_setzero_ps();
    made = {scale, _mm256_div_ps(one, scale), offset};
    if (half_) {
      const auto narrowed = [](__m256 x) {
        return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
      };
      made.scale = narrowed(scale);
      made.offset = narrowed(offset);
      const __m256 none =
          _mm256_or_ps(_mm256_cmp_ps(made.inverse, zero, _CMP_EQ_OQ), _mm256_cmp_ps(made.scale, zero, _CMP_EQ_OQ));
      made.inverse = _mm256_andnot_ps(none, _mm256_div_ps(one, made.scale));
    }
    return _mm256_and_ps(_mm256_and_ps(is_finite(made.inverse), is_finite(made.offset)),
                         _mm256_cmp_ps(made.inverse, zero, _CMP_NEQ_OQ));
  }

  static __m256 is_finite(__m256 x) {
    const __m256i infinity = _mm256_set1_epi32(static_cast<int>(numerics::kInfinityBits));
    const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(x), infinity);
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpeq_epi32(exponent, infinity), _mm256_set1_epi32(-1)));
  }

  // Takes a candidate in the lanes of `valid` where its error is smaller; returns these lanes.
  __m256 take(const LaneScales& candidate, __m256 valid, Doubles error) {
    const Doubles smaller = is_less(error, error_);
    const __m256 taken = _mm256_and_ps(narrow_mask(smaller), valid);
    best_.scale = _mm256_blendv_ps(best_.scale, candidate.scale, taken);
    best_.inverse = _mm256_blendv_ps(best_.inverse, candidate.inverse, taken);
    best_.offset = _mm256_blendv_ps(best_.offset, candidate.offset, taken);
    error_ = select(error_, error, wide_mask(taken));
    return taken;
  }

  // Several candidates are evaluated side by side, because a sum waits for itself, and taken in order.
  template <int kCount>
  void consider(const __m256 (&scales)[kCount], const __m256 (&offsets)[kCount]) {
    LaneScales candidates[kCount];
    __m256 valid[kCount];
    Doubles errors[kCount];
    for (int c = 0; c < kCount; ++c) valid[c] = make(scales[c], offsets[c], candidates[c]);
    evaluate<kCount>(candidates, errors);
    for (int c = 0; c < kCount; ++c) take(candidates[c], valid[c], errors[c]);
  }

  void clip_magnitude(__m256 lo, __m256 hi) {
    constexpr float kSmallest = 0.4f;
    const __m256 zero = _mm256_setzero_ps();
    const __m256 below = _mm256_cmp_ps(_mm256_sub_ps(zero, lo), hi, _CMP_GT_OQ);
    const __m256 extreme = _mm256_blendv_ps(hi, lo, below);
    for (int step = 0; step <= kSteps; ++step) {
      const __m256 bound = _mm256_mul_ps(extreme, _mm256_set1_ps(1.0f - (1.0f - kSmallest) * step / kSteps));
      consider<2>({_mm256_div_ps(bound, _mm256_set1_ps(highest_)), _mm256_div_ps(bound, _mm256_set1_ps(lowest_))},
                  {zero, zero});
    }
  }

  static __m256 shrunk_from(__m256 bound, __m256 other, int step) {
    const float part = 0.3f * static_cast<float>(step) / static_cast<float>(kSteps);
    return _mm256_add_ps(bound, _mm256_mul_ps(_mm256_sub_ps(other, bound), _mm256_set1_ps(part)));
  }

  void clip_span(__m256 lo, __m256 hi) {
    constexpr int kStride = 4;
    for (int i = 0; i <= kSteps; i += kStride) {
      const __m256 top = shrunk_from(hi, lo, i);
      const auto span = [&](int j, __m256& scale, __m256& offset) {
        const __m256 range = _mm256_sub_ps(top, shrunk_from(lo, hi, j));
        scale = _mm256_div_ps(range, _mm256_set1_ps(highest_ - lowest_));
        offset = _mm256_fnmadd_ps(scale, _mm256_set1_ps(highest_), top);
      };
      __m256 scales[2], offsets[2];
      int j = 0;
      for (; j + kStride <= kSteps; j += 2 * kStride) {
        span(j, scales[0], offsets[0]);
        span(j + kStride, scales[1], offsets[1]);
        consider<2>(scales, offsets);
      }
      __m256 last_scale[1], last_offset[1];
      span(j, last_scale[0], last_offset[0]);
      consider<1>(last_scale, last_offset);
    }
  }

  // BlockSearch::polish() in the active lanes; returns those where it found a better block.
  __m256 polish(__m256 active) {
    Doubles n = set_doubles(0.0), q1 = n, q2 = n, x1 = n, xq = n;
    for (std::int64_t i = 0; i < blocks_.count; ++i) {
      const __m256 value = values(i);
      const Doubles q = to_doubles(rounded(best_, value)), x = to_doubles(value);
      const Doubles wq = weighted(i, q), wx = weighted(i, x);
      q2 = add(q2, mul(wq, q));
      xq = add(xq, mul(wx, q));
      if (kSymmetric) continue;
      n = add(n, weighted(i, set_doubles(1.0)));
      q1 = add(q1, wq);
      x1 = add(x1, wx);
    }
    LaneScales candidate;
    Doubles solvable, scale;
    __m256 offset = _mm256_setzero_ps();
    const Doubles zero = set_doubles(0.0);
    if (kSymmetric) {
      solvable = is_less(zero, q2);
      scale = div(xq, q2);
    } else {
      const Doubles determinant = sub(mul(n, q2), mul(q1, q1));
      scale = div(sub(mul(n, xq), mul(q1, x1)), determinant);
      const Doubles positive = is_less(zero, scale), full = is_less(zero, determinant);
      solvable = {_mm256_and_pd(positive.low, full.low), _mm256_and_pd(positive.high, full.high)};
      offset = to_floats(div(sub(x1, mul(scale, q1)), n));
    }
    const __m256 valid = make(to_floats(scale), offset, candidate);
    Doubles errors[1];
    evaluate<1>(&candidate, errors);
    return take(candidate, _mm256_and_ps(_mm256_and_ps(valid, narrow_mask(solvable)), active), errors[0]);
  }

  const SearchedBlocks& blocks_;
  const bool half_;
  const float lowest_, highest_;
  LaneScales best_{};
  Doubles error_{};
};

template <bool kSymmetric, bool kWeighted>
QCORE_NUMERIC void search_lanes(const SearchedBlocks& blocks, const NearestForm& form, numerics::BlockScale* scales,
                                std::int8_t* codes) {
  constexpr int kLanes = SearchedBlocks::kLanes;
  __m256 lo = _mm256_loadu_ps(blocks.values), hi = lo;
  for (std::int64_t i = 1; i < blocks.count; ++i) {
    const __m256 value = _mm256_loadu_ps(blocks.values + i * kLanes);
    lo = _mm256_min_ps(value, lo);
    hi = _mm256_max_ps(value, hi);
  }
  alignas(32) float lows[kLanes], highs[kLanes], scale[kLanes], inverse[kLanes], offset[kLanes];
  _mm256_store_ps(lows, lo);
  _mm256_store_ps(highs, hi);
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::uint32_t low = numerics::magnitude_bits(lows[lane]), high = numerics::magnitude_bits(highs[lane]);
    scales[lane] =
        numerics::nearest_scale(low > high ? low : high, lows[lane], highs[lane], form.bits, kSymmetric, form.half);
    // A block without an inverse keeps its nearest scale; the lane computes with a scale that gives no NaN.
    scale[lane] = scales[lane].inverse == 0.0f ? 1.0f : scales[lane].scale;
    inverse[lane] = scales[lane].inverse == 0.0f ? 1.0f : scales[lane].inverse;
    offset[lane] = scales[lane].inverse == 0.0f ? 0.0f : scales[lane].offset;
  }
  LaneSearch<kSymmetric, kWeighted> search(blocks, form);
  const LaneScales found = search.run({_mm256_load_ps(scale), _mm256_load_ps(inverse), _mm256_load_ps(offset)}, lo, hi);
  search.encode(codes);
  _mm256_store_ps(scale, found.scale);
  _mm256_store_ps(inverse, found.inverse);
  _mm256_store_ps(offset, found.offset);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (scales[lane].inverse == 0.0f) {
      for (std::int64_t i = 0; i < blocks.count; ++i) codes[i * kLanes + lane] = 0;
      continue;
    }
    scales[lane] = {scale[lane], inverse[lane], offset[lane]};
  }
}

}  // namespace
}  // namespace qcore
