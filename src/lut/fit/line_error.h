#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "lut/fit/samples.h"

// The weighted errors of straight lines over runs of samples. Sums have a fixed order, so that compilers may vectorise
// them and the results are the same everywhere.
namespace qcore::lut_fit {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What becomes of the errors of samples: their sum or the largest.
struct SumOf {
  static double join(double a, double b) { return a + b; }
};
struct LargestOf {
  static double join(double a, double b) { return a > b ? a : b; }
};

// Of the line through (from, left) and (to, right), over samples [begin, end).
template <class Join>
double line_error(const Samples& samples, std::size_t begin, std::size_t end, double from, double to, double left,
                  double right) {
  constexpr std::size_t kLanes = 4;
  const double *x = samples.x(), *f = samples.f(), *w = samples.w();
  const double slope = (right - left) / (to - from);
  double lanes[kLanes] = {};
  std::size_t i = begin;
  for (; i + kLanes <= end; i += kLanes)
    for (std::size_t k = 0; k < kLanes; ++k)
      lanes[k] = Join::join(lanes[k], w[i + k] * std::fabs(left + (x[i + k] - from) * slope - f[i + k]));
  double error = Join::join(Join::join(lanes[0], lanes[1]), Join::join(lanes[2], lanes[3]));
  for (; i < end; ++i) error = Join::join(error, w[i] * std::fabs(left + (x[i] - from) * slope - f[i]));
  return error;
}

// Of the constant `value` over samples [begin, end).
template <class Join>
double constant_error(const Samples& samples, std::size_t begin, std::size_t end, double value) {
  return line_error<Join>(samples, begin, end, 0.0, 1.0, value, value);
}

// errors[l * kRights + r] of the lines from lefts[l] to rights[r].
template <class Join, int kLefts, int kRights>
void line_errors(const Samples& samples, std::size_t begin, std::size_t end, double from, double to,
                 const double* lefts, const double* rights, double* errors) {
  constexpr int kLines = kLefts * kRights;
  const double *x = samples.x(), *f = samples.f(), *w = samples.w();
  const double inverse = 1.0 / (to - from);
  double left[kLines], slope[kLines], sums[kLines] = {};
  for (int l = 0; l < kLefts; ++l)
    for (int r = 0; r < kRights; ++r) {
      left[l * kRights + r] = lefts[l];
      slope[l * kRights + r] = (rights[r] - lefts[l]) * inverse;
    }
  for (std::size_t i = begin; i < end; ++i) {
    const double distance = x[i] - from, value = f[i], weight = w[i];
    for (int k = 0; k < kLines; ++k)
      sums[k] = Join::join(sums[k], weight * std::fabs(left[k] + distance * slope[k] - value));
  }
  for (int k = 0; k < kLines; ++k) errors[k] = sums[k];
}

// At most line_error(), of `parts` runs of samples in a time that does not depend on their length.
template <class Join>
double line_error_bound(const Samples& samples, std::size_t begin, std::size_t end, double from, double to,
                        double left, double right, std::size_t parts) {
  if (begin >= end) return 0.0;
  const double slope = (right - left) / (to - from);
  double bound = 0.0;
  if constexpr (std::is_same_v<Join, SumOf>) {
    const std::size_t length = end - begin;
    for (std::size_t k = 0; k < parts; ++k)
      bound += samples.signed_sum(begin + length * k / parts, begin + length * (k + 1) / parts, from, left, slope);
  } else {
    for (std::size_t k = 0; k < parts; ++k) {
      const std::size_t i = begin + (end - begin) * (2 * k + 1) / (2 * parts);
      bound = std::max(bound,
                       samples.w()[i] * std::fabs(left + (samples.x()[i] - from) * slope - samples.f()[i]));
    }
  }
  return bound;
}

}  // namespace qcore::lut_fit
