#include "lut/fit/problem.h"

namespace qcore::lut_fit {

void Knots::place(const Samples& samples, double from, double to, std::size_t first_from, std::size_t first_to) {
  const std::size_t last = at.size() - 1;
  const double step = (to - from) / static_cast<double>(last);
  for (std::size_t k = 0; k <= last; ++k) {
    at[k] = k == last ? to : from + static_cast<double>(k) * step;
    first[k] = k == 0 ? first_from : k == last ? first_to : samples.first_from(at[k]);
    f[k] = target[k] = samples.interpolate(at[k], first[k]);
  }
}

void Knots::move_targets(const Samples& samples, double share) {
  const std::size_t last = at.size() - 1;
  if (last < 2) return;
  double before = samples.interpolate(0.5 * (at[0] + at[1]));
  for (std::size_t k = 1; k < last; ++k) {
    const double after = samples.interpolate(0.5 * (at[k] + at[k + 1]));
    if (f[k] != 0.0) target[k] = f[k] - share * (0.5 * (before + after) - f[k]);
    before = after;
  }
}

}  // namespace qcore::lut_fit
