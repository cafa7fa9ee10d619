#include "quantize/block_search.h"

#include <algorithm>
#include <cmath>

namespace qcore {
namespace {

using numerics::BlockScale;

struct Candidate {
  BlockScale scale;
  double error;
};

class BlockSearch {
 public:
  BlockSearch(const BlockValues& block, const QuantizeOptions& options)
      : values_(block.values),
        importance_(block.importance),
        count_(block.count),
        symmetric_(options.scheme == Scheme::symmetric),
        half_(options.scale_dtype == DType::f16),
        lowest_(lowest_code(options)),
        highest_(numerics::code_max(options.bits)) {}

  // Starts from the round-to-nearest block, tries ranges clipped on either side, and polishes the best by least
  // squares; the result's squared error is never above the start's.
  BlockScale run(const BlockScale& start, float lo, float hi) {
    best_ = {start, error(start)};
    constexpr int kSteps = 24;
    constexpr float kSmallest = 0.4f;
    const auto shrunk = [&](float bound, int step) { return bound * (1.0f - (1.0f - kSmallest) * step / kSteps); };
    if (symmetric_) {
      const float extreme = -lo > hi ? lo : hi;
      for (int step = 0; step <= kSteps; ++step) {
        consider(shrunk(extreme, step) / static_cast<float>(highest_), 0.0f);
        consider(shrunk(extreme, step) / static_cast<float>(lowest_), 0.0f);
      }
    } else {
      constexpr int kStride = 4;  // two sides: a coarser grid, which least squares then refines
      for (int i = 0; i <= kSteps; i += kStride)
        for (int j = 0; j <= kSteps; j += kStride)
          consider_span(shrunk_from(hi, lo, i, kSteps), shrunk_from(lo, hi, j, kSteps));
    }
    for (int round = 0; round < 8 && polish(); ++round) {
    }
    return best_.scale;
  }

 private:
  // `bound` moved towards `other` by up to 30% of the span.
  static float shrunk_from(float bound, float other, int step, int steps) {
    return bound + (other - bound) * (0.3f * static_cast<float>(step) / static_cast<float>(steps));
  }

  double counts(std::int64_t i) const { return importance_ ? importance_[i] : 1.0; }

  double error(const BlockScale& scale) const {
    double sum = 0.0;
    for (std::int64_t i = 0; i < count_; ++i) {
      const int code = numerics::encode(values_[i], scale, lowest_, highest_);
      const double difference = static_cast<double>(values_[i]) - numerics::decode(code, scale.scale, scale.offset);
      sum += counts(i) * difference * difference;
    }
    return sum;
  }

  bool consider(float scale, float offset) {
    BlockScale candidate{scale, 1.0f / scale, offset};
    if (half_) candidate = numerics::half_block(candidate);
    if (!numerics::is_finite(candidate.inverse) || candidate.inverse == 0.0f || !numerics::is_finite(candidate.offset))
      return false;
    const double candidate_error = error(candidate);
    if (!(candidate_error < best_.error)) return false;
    best_ = {candidate, candidate_error};
    return true;
  }

  void consider_span(float hi, float lo) {
    const float scale = (hi - lo) / static_cast<float>(highest_ - lowest_);
    consider(scale, numerics::fma_once(-scale, static_cast<float>(highest_), hi));
  }

  // The least-squares scale (and offset) for the codes that the best candidate gives.
  bool polish() {
    double n = 0, q1 = 0, q2 = 0, x1 = 0, xq = 0;
    for (std::int64_t i = 0; i < count_; ++i) {
      const double q = numerics::encode(values_[i], best_.scale, lowest_, highest_), x = values_[i];
      const double weight = counts(i);
      n += weight;
      q1 += weight * q;
      q2 += weight * q * q;
      x1 += weight * x;
      xq += weight * x * q;
    }
    if (symmetric_) return q2 > 0 && consider(static_cast<float>(xq / q2), 0.0f);
    const double determinant = n * q2 - q1 * q1;
    if (!(determinant > 0)) return false;
    const double scale = (n * xq - q1 * x1) / determinant;
    return scale > 0 && consider(static_cast<float>(scale), static_cast<float>((x1 - scale * q1) / n));
  }

  const float *values_, *importance_;
  std::int64_t count_;
  bool symmetric_, half_;
  int lowest_, highest_;
  Candidate best_{};
};

}  // namespace

BlockScale choose_block_scale(const BlockValues& block, const QuantizeOptions& options) {
  const float* values = block.values;
  std::uint32_t magnitude = 0;
  float lo = values[0], hi = values[0];
  for (std::int64_t i = 0; i < block.count; ++i) {
    magnitude = std::max(magnitude, numerics::magnitude_bits(values[i]));
    lo = std::min(lo, values[i]);
    hi = std::max(hi, values[i]);
  }
  const BlockScale nearest = numerics::nearest_scale(
      magnitude, lo, hi, options.bits, options.scheme == Scheme::symmetric, options.scale_dtype == DType::f16);
  if (options.method == Method::rtn || nearest.inverse == 0.0f) return nearest;
  return BlockSearch(block, options).run(nearest, lo, hi);
}

}  // namespace qcore
