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
  const float* x32() const { return x32_.data(); }
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

  double weight(std::size_t begin, std::size_t end) const { return Sum::between(sums_[begin].w, sums_[end].w); }

  // |sum of w * (left + (x - from) * slope - f)| over samples [begin, end), which is at most the sum of the magnitudes.
  double signed_sum(std::size_t begin, std::size_t end, double from, double left, double slope) const {
    const Sums &a = sums_[begin], &b = sums_[end];
    const double sum =
        (left - from * slope) * Sum::between(a.w, b.w) + slope * Sum::between(a.wx, b.wx) - Sum::between(a.wf, b.wf);
    return sum < 0 ? -sum : sum;
  }

 private:
  // From the first sample on, in two parts: weights differ by ten orders of magnitude, and so would the rounding of a
  // difference of plain sums from the difference.
  struct Sum {
    double high = 0.0, low = 0.0;
    Sum plus(double x) const {
      const double sum = high + x, back = sum - high;
      return {sum, low + ((high - (sum - back)) + (x - back))};
    }
    static double between(const Sum& a, const Sum& b) { return (b.high - a.high) + (b.low - a.low); }
  };
  struct Sums {
    Sum w, wx, wf;
  };
  std::vector<double> x_, f_, w_, slope_;
  std::vector<float> x32_;  // exact
  std::vector<Sums> sums_;  // [n + 1]
  std::vector<std::uint32_t> buckets_;
  std::int64_t lowest_bucket_ = 0;
};

}  // namespace qcore::lut_fit
