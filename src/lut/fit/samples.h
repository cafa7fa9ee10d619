#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace qcore::lut_fit {

// The samples in fp64 and what makes sums over a run of them cheap.
class Samples {
 public:
  Samples(std::vector<double> x, std::vector<double> f, std::vector<double> w);

  std::size_t size() const { return x_.size(); }
  const double* x() const { return x_.data(); }
  const double* f() const { return f_.data(); }
  const double* w() const { return w_.data(); }

  // The first sample with x >= at.
  std::size_t first_from(double at) const;

  // f between samples, interpolated; `first` is first_from(at). Beyond the samples that of the last one.
  double interpolate(double at, std::size_t first) const {
    if (first == size()) return f_.back();
    return first == 0 ? f_[0] : f_[first] + (at - x_[first]) * slope_[first];
  }
  double interpolate(double at) const { return interpolate(at, first_from(at)); }

  // |sum of w * (left + (x - from) * slope - f)| over samples [begin, end), which is at most the sum of the magnitudes.
  double signed_sum(std::size_t begin, std::size_t end, double from, double left, double slope) const {
    const Sums &a = sums_[begin], &b = sums_[end];
    const double sum = (left - from * slope) * (b.w - a.w) + slope * (b.wx - a.wx) - (b.wf - a.wf);
    return sum < 0 ? -sum : sum;
  }

 private:
  struct Sums {
    double w, wx, wf;
  };
  std::vector<double> x_, f_, w_, slope_;
  std::vector<Sums> sums_;  // [n + 1]
  std::vector<std::uint32_t> buckets_;
  std::int64_t lowest_bucket_ = 0;
};

}  // namespace qcore::lut_fit
