#pragma once

#include "quantize/cpu/vtable.h"

// The search of block_search.cpp for several blocks at once, one in each lane, so that every lane takes the reference's
// steps in the reference's order and has its bits. S is an instruction set's vectors:
//   kLanes, F, Mask                  floats, and what a comparison of them gives
//   Doubles, WideMask                as many doubles, likewise
//   load, store, set, add, sub, mul, div, fma, at_least, at_most     of floats, as numerics/lanes.h
//   minus_product(a, b, c)           a - b * c, rounded once
//   as_half(a)                       rounded to fp16
//   reciprocal_or_zero(inverse, a)   1 / a, or 0 where inverse or a is 0
//   is_finite, is_nonzero, greater, both, any, all, select(mask, yes, no)
//   lookup(table, biased)            table[i] for whole numbers i in the bits of 1.5 * 2^23 + i
//   store_codes(to, a)               whole numbers in the range of int8
//   total(a)                         sum of doubles: the upper half is added to the lower one until one is left
//   set_doubles, load_doubles, to_doubles, to_floats, add, sub, mul, div, fma, minus_product, is_less, both, select of
//   doubles
//   narrow_mask(WideMask), wide_mask(Mask)
namespace qcore {
namespace {

template <class S, bool kSymmetric, bool kWeighted>
class LaneSearch {
 public:
  using F = typename S::F;
  using Mask = typename S::Mask;
  using Doubles = typename S::Doubles;
  struct LaneScales {
    F scale, inverse, offset;
  };

  LaneSearch(const SearchedBlocks& blocks, const NearestForm& form)
      : blocks_(blocks),
        half_(form.half),
        lowest_(static_cast<float>(form.lowest)),
        highest_(static_cast<float>(numerics::code_max(form.bits))) {}

  LaneScales run(const LaneScales& start, F lo, F hi) {
    best_ = start;
    Doubles errors[1];
    evaluate<1>(&best_, errors);
    error_ = errors[0];
    kSymmetric ? clip_magnitude(lo, hi) : clip_span(lo, hi);
    Mask active = S::all();
    for (int round = 0; round < 8 && S::any(active); ++round) active = polish(active);
    return best_;
  }

  // int8 [count], SearchedBlocks::kLanes apart.
  void encode(std::int8_t* codes) const {
    for (std::int64_t i = 0; i < blocks_.count; ++i)
      S::store_codes(codes + i * SearchedBlocks::kLanes, rounded(best_, values(i)));
  }

 private:
  static constexpr int kSteps = 24;

  F values(std::int64_t i) const { return S::load(blocks_.values + i * SearchedBlocks::kLanes); }

  // The codes as floats; numerics::encode() without its conversion to an integer.
  F rounded(const LaneScales& s, F value) const {
    const F shifted = kSymmetric ? value : S::sub(value, s.offset);
    F x = S::mul(shifted, s.inverse);
    x = S::at_most(S::at_least(x, S::set(lowest_)), S::set(highest_));
    const F shift = S::set(12582912.0f);
    return S::sub(S::add(x, shift), shift);
  }

  F decoded(const LaneScales& s, F code) const {
    return kSymmetric ? S::mul(s.scale, code) : S::fma(s.scale, code, s.offset);
  }

  Doubles weighted(std::int64_t i, Doubles a) const {
    return kWeighted ? S::mul(S::set_doubles(static_cast<double>(blocks_.importance[i])), a) : a;
  }

  template <int kCount>
  void evaluate(const LaneScales* candidates, Doubles* errors) const {
    Doubles sums[kCount];
    for (int c = 0; c < kCount; ++c) sums[c] = S::set_doubles(0.0);
    for (std::int64_t i = 0; i < blocks_.count; ++i) {
      const F value = values(i);
      const Doubles wide = S::to_doubles(value);
      for (int c = 0; c < kCount; ++c) {
        const Doubles difference = S::sub(wide, S::to_doubles(decoded(candidates[c], rounded(candidates[c], value))));
        sums[c] = S::add(sums[c], S::mul(weighted(i, difference), difference));
      }
    }
    for (int c = 0; c < kCount; ++c) errors[c] = sums[c];
  }

  // The candidate that BlockSearch::consider() makes, and whether it is one.
  Mask make(F scale, F offset, LaneScales& made) const {
    made = {scale, S::div(S::set(1.0f), scale), offset};
    if (half_) {
      made.scale = S::as_half(scale);
      made.offset = S::as_half(offset);
      made.inverse = S::reciprocal_or_zero(made.inverse, made.scale);
    }
    return S::both(S::both(S::is_finite(made.inverse), S::is_finite(made.offset)), S::is_nonzero(made.inverse));
  }

  // Takes a candidate in the lanes of `valid` where its error is smaller; returns these lanes.
  Mask take(const LaneScales& candidate, Mask valid, Doubles error) {
    const Mask taken = S::both(S::narrow_mask(S::is_less(error, error_)), valid);
    best_.scale = S::select(taken, candidate.scale, best_.scale);
    best_.inverse = S::select(taken, candidate.inverse, best_.inverse);
    best_.offset = S::select(taken, candidate.offset, best_.offset);
    error_ = S::select(S::wide_mask(taken), error, error_);
    return taken;
  }

  // Several candidates are evaluated side by side, because a sum waits for itself, and taken in order.
  template <int kCount>
  void consider(const F (&scales)[kCount], const F (&offsets)[kCount]) {
    LaneScales candidates[kCount];
    Mask valid[kCount];
    Doubles errors[kCount];
    for (int c = 0; c < kCount; ++c) valid[c] = make(scales[c], offsets[c], candidates[c]);
    evaluate<kCount>(candidates, errors);
    for (int c = 0; c < kCount; ++c) take(candidates[c], valid[c], errors[c]);
  }

  void clip_magnitude(F lo, F hi) {
    constexpr float kSmallest = 0.4f;
    const F zero = S::set(0.0f);
    const F extreme = S::select(S::greater(S::sub(zero, lo), hi), lo, hi);
    for (int step = 0; step <= kSteps; ++step) {
      const F bound = S::mul(extreme, S::set(1.0f - (1.0f - kSmallest) * step / kSteps));
      consider<2>({S::div(bound, S::set(highest_)), S::div(bound, S::set(lowest_))}, {zero, zero});
    }
  }

  static F shrunk_from(F bound, F other, int step) {
    const float part = 0.3f * static_cast<float>(step) / static_cast<float>(kSteps);
    return S::add(bound, S::mul(S::sub(other, bound), S::set(part)));
  }

  void clip_span(F lo, F hi) {
    constexpr int kStride = 4;
    for (int i = 0; i <= kSteps; i += kStride) {
      const F top = shrunk_from(hi, lo, i);
      const auto span = [&](int j, F& scale, F& offset) {
        const F range = S::sub(top, shrunk_from(lo, hi, j));
        scale = S::div(range, S::set(highest_ - lowest_));
        offset = S::minus_product(top, scale, S::set(highest_));
      };
      F scales[2], offsets[2];
      int j = 0;
      for (; j + kStride <= kSteps; j += 2 * kStride) {
        span(j, scales[0], offsets[0]);
        span(j + kStride, scales[1], offsets[1]);
        consider<2>(scales, offsets);
      }
      F last_scale[1], last_offset[1];
      span(j, last_scale[0], last_offset[0]);
      consider<1>(last_scale, last_offset);
    }
  }

  // BlockSearch::polish() in the active lanes; returns those where it found a better block.
  Mask polish(Mask active) {
    Doubles n = S::set_doubles(0.0), q1 = n, q2 = n, x1 = n, xq = n;
    for (std::int64_t i = 0; i < blocks_.count; ++i) {
      const F value = values(i);
      const Doubles q = S::to_doubles(rounded(best_, value)), x = S::to_doubles(value);
      const Doubles wq = weighted(i, q), wx = weighted(i, x);
      q2 = S::add(q2, S::mul(wq, q));
      xq = S::add(xq, S::mul(wx, q));
      if (kSymmetric) continue;
      n = S::add(n, weighted(i, S::set_doubles(1.0)));
      q1 = S::add(q1, wq);
      x1 = S::add(x1, wx);
    }
    LaneScales candidate;
    typename S::WideMask solvable;
    Doubles scale;
    F offset = S::set(0.0f);
    const Doubles zero = S::set_doubles(0.0);
    if (kSymmetric) {
      solvable = S::is_less(zero, q2);
      scale = S::div(xq, q2);
    } else {
      const Doubles determinant = S::sub(S::mul(n, q2), S::mul(q1, q1));
      scale = S::div(S::sub(S::mul(n, xq), S::mul(q1, x1)), determinant);
      solvable = S::both(S::is_less(zero, scale), S::is_less(zero, determinant));
      offset = S::to_floats(S::div(S::sub(x1, S::mul(scale, q1)), n));
    }
    const Mask valid = make(S::to_floats(scale), offset, candidate);
    Doubles errors[1];
    evaluate<1>(&candidate, errors);
    return take(candidate, S::both(S::both(valid, S::narrow_mask(solvable)), active), errors[0]);
  }

  const SearchedBlocks& blocks_;
  const bool half_;
  const float lowest_, highest_;
  LaneScales best_{};
  Doubles error_{};
};

template <class S, bool kSymmetric, bool kWeighted>
QCORE_NUMERIC void search_lanes(const SearchedBlocks& blocks, const NearestForm& form, numerics::BlockScale* scales,
                                std::int8_t* codes) {
  using F = typename S::F;
  using Search = LaneSearch<S, kSymmetric, kWeighted>;
  constexpr int kLanes = S::kLanes;
  F lo = S::load(blocks.values), hi = lo;
  for (std::int64_t i = 1; i < blocks.count; ++i) {
    const F value = S::load(blocks.values + i * SearchedBlocks::kLanes);
    lo = S::at_most(value, lo);
    hi = S::at_least(value, hi);
  }
  alignas(32) float lows[kLanes], highs[kLanes], scale[kLanes], inverse[kLanes], offset[kLanes];
  S::store(lows, lo);
  S::store(highs, hi);
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::uint32_t low = numerics::magnitude_bits(lows[lane]), high = numerics::magnitude_bits(highs[lane]);
    scales[lane] =
        numerics::nearest_scale(low > high ? low : high, lows[lane], highs[lane], form.bits, kSymmetric, form.half);
    // A block without an inverse keeps its nearest scale; the lane computes with a scale that gives no NaN.
    scale[lane] = scales[lane].inverse == 0.0f ? 1.0f : scales[lane].scale;
    inverse[lane] = scales[lane].inverse == 0.0f ? 1.0f : scales[lane].inverse;
    offset[lane] = scales[lane].inverse == 0.0f ? 0.0f : scales[lane].offset;
  }
  Search search(blocks, form);
  const typename Search::LaneScales found = search.run({S::load(scale), S::load(inverse), S::load(offset)}, lo, hi);
  search.encode(codes);
  S::store(scale, found.scale);
  S::store(inverse, found.inverse);
  S::store(offset, found.offset);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (scales[lane].inverse == 0.0f) {
      for (std::int64_t i = 0; i < blocks.count; ++i) codes[i * SearchedBlocks::kLanes + lane] = 0;
      continue;
    }
    scales[lane] = {scale[lane], inverse[lane], offset[lane]};
  }
}

// Searches all blocks, as many at once as there are lanes.
template <class S, bool kSymmetric, bool kWeighted>
QCORE_NUMERIC void search_all(const SearchedBlocks& blocks, const NearestForm& form, numerics::BlockScale* scales,
                              std::int8_t* codes) {
  for (int first = 0; first < SearchedBlocks::kLanes; first += S::kLanes)
    search_lanes<S, kSymmetric, kWeighted>({blocks.values + first, blocks.importance, blocks.count}, form,
                                           scales + first, codes + first);
}

template <class S>
void search_blocks(const SearchedBlocks& blocks, const NearestForm& form, numerics::BlockScale* scales,
                   std::int8_t* codes) {
  const auto search = form.symmetric ? (blocks.importance ? search_all<S, true, true> : search_all<S, true, false>)
                                     : (blocks.importance ? search_all<S, false, true> : search_all<S, false, false>);
  search(blocks, form, scales, codes);
}

}  // namespace
}  // namespace qcore
