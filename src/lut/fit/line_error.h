#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "lut/fit/samples.h"

// The weighted errors of a table's segments over runs of samples. Sums have a fixed order, so that compilers may
// vectorize them and the results are the same everywhere.
namespace qcore::lut_fit {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Join the errors of samples: to their sum or to the largest.
struct SumOf {
  static double join(double a, double b) { return a + b; }
};
struct LargestOf {
  static double join(double a, double b) { return a > b ? a : b; }
};

// Where samples lie in an interval, as numerics/lut_eval.h computes it: (x - cut) * scale in fp32. Beside a distant cut
// the difference loses the last bits of x, which the fit must see.
struct IntervalScale {
  IntervalScale(double from, double to, int segments)
      : cut(static_cast<float>(from)),
        scale(static_cast<float>(segments) / (static_cast<float>(to) - static_cast<float>(from))) {}
  double place(float x) const { return static_cast<double>((x - cut) * scale); }
  float cut, scale;
};

// Returns the error of segment `segment` of an interval, from `left` to `right`, over samples [begin, end).
template <class Join>
double segment_error(const Samples& samples, std::size_t begin, std::size_t end, const IntervalScale& scale,
                     int segment, double left, double right) {
  constexpr std::size_t kLanes = 4;
  const float* x = samples.x32();
  const double *f = samples.f(), *w = samples.w();
  const double delta = right - left, at_zero = left - segment * delta;
  double lanes[kLanes] = {};
  std::size_t i = begin;
  for (; i + kLanes <= end; i += kLanes)
    for (std::size_t k = 0; k < kLanes; ++k)
      lanes[k] = Join::join(lanes[k], w[i + k] * std::fabs(at_zero + scale.place(x[i + k]) * delta - f[i + k]));
  double error = Join::join(Join::join(lanes[0], lanes[1]), Join::join(lanes[2], lanes[3]));
  for (; i < end; ++i) error = Join::join(error, w[i] * std::fabs(at_zero + scale.place(x[i]) * delta - f[i]));
  return error;
}

// Returns the error of the constant `value` over samples [begin, end).
template <class Join>
double constant_error(const Samples& samples, std::size_t begin, std::size_t end, double value) {
  return segment_error<Join>(samples, begin, end, IntervalScale(0.0, 1.0, 1), 0, value, value);
}

// errors[l * kRights + r] of the segments from lefts[l] to rights[r].
template <class Join, int kLefts, int kRights>
void segment_errors(const Samples& samples, std::size_t begin, std::size_t end, const IntervalScale& scale, int segment,
                    const double* lefts, const double* rights, double* errors) {
  constexpr int kLines = kLefts * kRights;
  const float* x = samples.x32();
  const double *f = samples.f(), *w = samples.w();
  double at_zero[kLines], delta[kLines], sums[kLines] = {};
  for (int l = 0; l < kLefts; ++l)
    for (int r = 0; r < kRights; ++r) {
      delta[l * kRights + r] = rights[r] - lefts[l];
      at_zero[l * kRights + r] = lefts[l] - segment * delta[l * kRights + r];
    }
  for (std::size_t i = begin; i < end; ++i) {
    const double place = scale.place(x[i]), value = f[i], weight = w[i];
    for (int k = 0; k < kLines; ++k)
      sums[k] = Join::join(sums[k], weight * std::fabs(at_zero[k] + place * delta[k] - value));
  }
  for (int k = 0; k < kLines; ++k) errors[k] = sums[k];
}

// A segment for bounds: its ends, and how far fp32 may move the result of place() and with it a sample's value.
struct BoundedSegment {
  double from, to, left, right;
  int number;
  double slope() const { return (right - left) / (to - from); }
  double rounding() const { return std::fabs(right - left) * (number + 1) * (3 * 0x1p-24); }
};

// Bounds of a segment's error, found in a time that does not depend on the number of samples.
struct Bounds {
  double least = 0.0;   // not above segment_error(), for any roundings in fp32
  double likely = 0.0;  // an estimate
};

template <class Join>
Bounds segment_bounds(const Samples& samples, std::size_t begin, std::size_t end, const BoundedSegment& segment,
                      std::size_t parts) {
  constexpr double kLikely = 0.125;  // the mean error of roundings, as a part of their bound
  Bounds bounds;
  if (begin >= end) return bounds;
  const double slope = segment.slope(), rounding = segment.rounding();
  const std::size_t length = end - begin;
  for (std::size_t k = 0; k < parts; ++k) {
    double error, roundings;
    if constexpr (std::is_same_v<Join, SumOf>) {
      const std::size_t first = begin + length * k / parts, last = begin + length * (k + 1) / parts;
      error = samples.signed_sum(first, last, segment.from, segment.left, slope);
      roundings = rounding * samples.weight(first, last);
    } else {
      const std::size_t i = begin + length * (2 * k + 1) / (2 * parts);
      error = samples.w()[i] * std::fabs(segment.left + (samples.x()[i] - segment.from) * slope - samples.f()[i]);
      roundings = samples.w()[i] * rounding;
    }
    bounds.least = Join::join(bounds.least, std::max(error - roundings, 0.0));
    bounds.likely = Join::join(bounds.likely, error + kLikely * roundings);
  }
  return bounds;
}

// segment_errors() for a search: a long run of samples is taken in blocks, and a block whose errors have the same sign
// at both ends costs no more than its ends. fp32 roundings of the place are left out there.
template <int kLefts, int kRights>
void quick_segment_errors(const Samples& samples, std::size_t begin, std::size_t end, const IntervalScale& scale,
                          double from, double to, int segment, const double* lefts, const double* rights,
                          double* errors) {
  constexpr std::size_t kBlocks = 16;
  const double inverse = 1.0 / (to - from);
  const double *x = samples.x(), *f = samples.f();
  for (int k = 0; k < kLefts * kRights; ++k) errors[k] = 0.0;
  const std::size_t length = end - begin;
  for (std::size_t b = 0; b < kBlocks; ++b) {
    const std::size_t first = begin + length * b / kBlocks, last = begin + length * (b + 1) / kBlocks;
    for (int k = 0; k < kLefts * kRights; ++k) {
      const double left = lefts[k / kRights], right = rights[k % kRights], slope = (right - left) * inverse;
      const bool below = left + (x[first] - from) * slope < f[first];
      errors[k] += below == (left + (x[last - 1] - from) * slope < f[last - 1])
                       ? samples.signed_sum(first, last, from, left, slope)
                       : segment_error<SumOf>(samples, first, last, scale, segment, left, right);
    }
  }
}

// One or the other of the above: what is left out of the quick one must be below `negligible`.
template <class Join, int kLefts, int kRights>
void search_errors(const Samples& samples, std::size_t begin, std::size_t end, const IntervalScale& scale, double from,
                   double to, int segment, const double* lefts, const double* rights, double negligible,
                   double* errors) {
  constexpr std::size_t kLongRun = 192;
  if constexpr (std::is_same_v<Join, SumOf>) {
    const BoundedSegment widest{from, to, lefts[0], rights[kRights - 1], segment};
    if (end - begin >= kLongRun && widest.rounding() * samples.weight(begin, end) < negligible) {
      quick_segment_errors<kLefts, kRights>(samples, begin, end, scale, from, to, segment, lefts, rights, errors);
      return;
    }
  }
  segment_errors<Join, kLefts, kRights>(samples, begin, end, scale, segment, lefts, rights, errors);
}

}  // namespace qcore::lut_fit
