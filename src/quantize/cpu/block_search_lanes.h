#pragma once

#include "quantize/cpu/vtable.h"

// The search of block_search.cpp for several blocks at once, one in each lane, so that every lane takes the reference's
// steps in the reference's order and has its bits. Candidates are compared by errors in fp32 first, which cost half of
// those in doubles; only candidates that may have the smallest error are evaluated as the reference does. S is an
// instruction set's vectors:
//   kLanes, F, Mask                  floats, and what a comparison of them gives
//   Doubles, WideMask                as many doubles, likewise
//   load, store, set, add, sub, mul, div, fma, at_least, at_most, round_even     of floats, as numerics/lanes.h
//   minus_product(a, b, c)           a - b * c, rounded once
//   as_half(a)                       rounded to fp16
//   reciprocal_or_zero(inverse, a)   1 / a, or 0 where inverse or a is 0
//   is_finite, is_nonzero, greater, both, any, every, all, select(mask, yes, no)
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
    take_best();
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
  static constexpr int kSteps = 24, kStride = 4;  // both bounds of a span move: a coarser grid
  static constexpr int kTogether = 4;             // candidates evaluated side by side, because a sum waits for itself
  static constexpr int kSpans = (kSteps / kStride + 1) * (kSteps / kStride + 1);
  static constexpr int kCandidates = kSymmetric ? 2 * (kSteps + 1) : kSpans;
  static constexpr int kGroups = (kCandidates + kTogether - 1) / kTogether;

  F values(std::int64_t i) const { return S::load(blocks_.values + i * SearchedBlocks::kLanes); }

  // The codes as floats; numerics::encode() without its conversion to an integer.
  F rounded(const LaneScales& s, F value) const {
    const F shifted = kSymmetric ? value : S::sub(value, s.offset);
    F x = S::mul(shifted, s.inverse);
    x = S::at_most(S::at_least(x, S::set(lowest_)), S::set(highest_));
    return S::round_even(x);
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

  void add(F scale, F offset) {
    LaneScales candidate;
    valid_[count_] = make(scale, offset, candidate);
    float* to = candidates_[count_++];
    S::store(to, candidate.scale);
    S::store(to + S::kLanes, candidate.inverse);
    S::store(to + 2 * S::kLanes, candidate.offset);
  }

  void clip_magnitude(F lo, F hi) {
    constexpr float kSmallest = 0.4f;
    const F zero = S::set(0.0f);
    const F extreme = S::select(S::greater(S::sub(zero, lo), hi), lo, hi);
    for (int step = 0; step <= kSteps; ++step) {
      const F bound = S::mul(extreme, S::set(1.0f - (1.0f - kSmallest) * step / kSteps));
      add(S::div(bound, S::set(highest_)), zero);
      add(S::div(bound, S::set(lowest_)), zero);
    }
  }

  static F shrunk_from(F bound, F other, int step) {
    const float part = 0.3f * static_cast<float>(step) / static_cast<float>(kSteps);
    return S::add(bound, S::mul(S::sub(other, bound), S::set(part)));
  }

  void clip_span(F lo, F hi) {
    for (int i = 0; i <= kSteps; i += kStride)
      for (int j = 0; j <= kSteps; j += kStride) {
        const F top = shrunk_from(hi, lo, i);
        const F scale = S::div(S::sub(top, shrunk_from(lo, hi, j)), S::set(highest_ - lowest_));
        add(scale, S::minus_product(top, scale, S::set(highest_)));
      }
  }

  // Whether fp32 sums have an error that rough_limit() knows: importances whose products with a difference are no
  // denormal numbers, unless the difference is smaller than any that counts.
  bool can_compare_roughly() const {
    constexpr float kSmall = 0x1p-60f, kLarge = 0x1p60f;
    constexpr std::int64_t kMost = std::int64_t{1} << 18;
    if (blocks_.count > kMost) return false;
    for (std::int64_t i = 0; kWeighted && i < blocks_.count; ++i) {
      const float importance = blocks_.importance[i];
      if (importance != 0.0f && !(importance >= kSmall && importance <= kLarge)) return false;
    }
    return true;
  }

  // A candidate whose rough error is larger than this has a larger error than the candidate with the rough error
  // `least`. A rough error has less than count + 8 roundings, each of at most 2^-24 of it. Below 2^-100 denormal
  // numbers add to that, and above 2^120 a sum may have overflowed.
  F rough_limit(F least) const {
    const F infinity = S::set(numerics::bits_float(numerics::kInfinityBits));
    const float margin = 1.0f + static_cast<float>(blocks_.count + 8) * 0x1p-22f;
    const F limit = S::mul(S::at_least(least, S::set(0x1p-100f)), S::set(margin));
    return S::select(S::greater(limit, S::set(0x1p120f)), infinity, limit);
  }

  // The errors of kTogether candidates from `first` on, or of the last one where there are less, in fp32. Stops where
  // all are larger than the limit.
  void evaluate_roughly(int first, F limit, F* sums) const {
    constexpr std::int64_t kBetweenChecks = 16;
    LaneScales candidates[kTogether];
    F sum[kTogether];
    for (int c = 0; c < kTogether; ++c) {
      const float* from = candidates_[first + c < count_ ? first + c : count_ - 1];
      candidates[c] = {S::load(from), S::load(from + S::kLanes), S::load(from + 2 * S::kLanes)};
      sum[c] = S::set(0.0f);
    }
    for (std::int64_t i = 0; i < blocks_.count;) {
      const std::int64_t end = i + kBetweenChecks < blocks_.count ? i + kBetweenChecks : blocks_.count;
      for (; i < end; ++i) {
        const F value = values(i);
        for (int c = 0; c < kTogether; ++c) {
          const F difference = S::sub(value, decoded(candidates[c], rounded(candidates[c], value)));
          const F weighed = kWeighted ? S::mul(S::set(blocks_.importance[i]), difference) : difference;
          sum[c] = S::fma(weighed, difference, sum[c]);
        }
      }
      Mask larger = S::greater(sum[0], limit);
      for (int c = 1; c < kTogether; ++c) larger = S::both(larger, S::greater(sum[c], limit));
      if (S::every(larger)) break;
    }
    for (int c = 0; c < kTogether; ++c) sums[c] = sum[c];
  }

  // Takes the candidate with the smallest error in each lane, the first one of several.
  void take_best() {
    const F infinity = S::set(numerics::bits_float(numerics::kInfinityBits));
    const bool roughly = can_compare_roughly();
    F rough[kGroups * kTogether], limit = infinity;
    if (roughly) {
      F least = infinity;
      for (int first = 0; first < count_; first += kTogether) {
        evaluate_roughly(first, limit, rough + first);
        for (int c = first; c < first + kTogether && c < count_; ++c)
          least = S::select(valid_[c], S::at_most(rough[c], least), least);
        limit = rough_limit(least);
      }
    }
    // Each lane's candidates that are left, in order.
    alignas(32) float errors[S::kLanes], limits[S::kLanes], marks[S::kLanes];
    std::uint8_t left[S::kLanes][kCandidates];
    int counts[S::kLanes] = {}, most = 0;
    S::store(limits, limit);
    for (int c = 0; c < count_; ++c) {
      if (roughly && S::every(S::greater(rough[c], limit))) continue;
      S::store(errors, roughly ? rough[c] : S::set(0.0f));
      S::store(marks, S::select(valid_[c], S::set(1.0f), S::set(0.0f)));
      for (int lane = 0; lane < S::kLanes; ++lane) {
        if (marks[lane] == 0.0f || errors[lane] > limits[lane]) continue;
        left[lane][counts[lane]++] = static_cast<std::uint8_t>(c);
        most = counts[lane] > most ? counts[lane] : most;
      }
    }
    for (int round = 0; round < most; ++round) take_round(left, counts, round);
  }

  // Evaluates one candidate of each lane that has so many.
  void take_round(const std::uint8_t (&left)[S::kLanes][kCandidates], const int* counts, int round) {
    alignas(32) float scale[S::kLanes], inverse[S::kLanes], offset[S::kLanes], marks[S::kLanes];
    for (int lane = 0; lane < S::kLanes; ++lane) {
      const bool has = round < counts[lane];
      const float* candidate = candidates_[has ? left[lane][round] : 0] + lane;
      scale[lane] = candidate[0], inverse[lane] = candidate[S::kLanes], offset[lane] = candidate[2 * S::kLanes];
      marks[lane] = has ? 1.0f : 0.0f;
    }
    const LaneScales candidate{S::load(scale), S::load(inverse), S::load(offset)};
    Doubles errors[1];
    evaluate<1>(&candidate, errors);
    take(candidate, S::greater(S::load(marks), S::set(0.0f)), errors[0]);
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
  float candidates_[kCandidates][3 * S::kLanes];  // scale, inverse and offset of each lane
  Mask valid_[kCandidates];
  int count_ = 0;
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
