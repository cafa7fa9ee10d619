#include "lut/fit/samples.h"

#include <algorithm>
#include <utility>

#include "numerics/portable.h"

namespace qcore::lut_fit {
namespace {

// Numbers with the same upper 19 bits as fp32, in their order: fp16 values have a bucket each.
std::int64_t bucket_of(double at) {
  const std::uint32_t bits = numerics::float_bits(static_cast<float>(at));
  const auto magnitude = static_cast<std::int64_t>((bits & 0x7fffffffu) >> 13);
  return bits >> 31 ? -1 - magnitude : magnitude;
}

}  // namespace

Samples::Samples(std::vector<double> x, std::vector<double> f, std::vector<double> w)
    : x_(std::move(x)),
      f_(std::move(f)),
      w_(std::move(w)),
      slope_(x_.size()),
      x32_(x_.begin(), x_.end()),
      sums_(x_.size() + 1) {
  for (std::size_t i = 0; i < size(); ++i) {
    if (i > 0) slope_[i] = (f_[i] - f_[i - 1]) / (x_[i] - x_[i - 1]);
    const Sums& before = sums_[i];
    sums_[i + 1] = {before.w.plus(w_[i]), before.wx.plus(w_[i] * x_[i]), before.wf.plus(w_[i] * f_[i])};
  }
  lowest_bucket_ = bucket_of(x_.front());
  buckets_.resize(static_cast<std::size_t>(bucket_of(x_.back()) - lowest_bucket_) + 2);
  std::size_t i = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    while (i < size() && bucket_of(x_[i]) < lowest_bucket_ + static_cast<std::int64_t>(b)) ++i;
    buckets_[b] = static_cast<std::uint32_t>(i);
  }
}

std::size_t Samples::first_from(double at) const {
  if (!(at > x_.front())) return 0;
  if (at > x_.back()) return size();
  // fp32 rounding may have moved `at` by one bucket.
  const auto b = static_cast<std::size_t>(bucket_of(at) - lowest_bucket_);
  std::size_t low = buckets_[b], high = buckets_[std::min(b + 1, buckets_.size() - 1)];
  while (low > 0 && x_[low - 1] >= at) --low;
  while (high < size() && x_[high] < at) ++high;
  if (high - low < 8) {
    while (low < high && x_[low] < at) ++low;
    return low;
  }
  return static_cast<std::size_t>(std::lower_bound(x_.begin() + static_cast<std::ptrdiff_t>(low),
                                                   x_.begin() + static_cast<std::ptrdiff_t>(high), at) -
                                  x_.begin());
}

}  // namespace qcore::lut_fit
