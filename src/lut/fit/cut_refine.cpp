#include "lut/fit/cut_refine.h"

#include <algorithm>
#include <array>

#include "lut/fit/value_fit.h"

namespace qcore::lut_fit {
namespace {

constexpr int kEnds = 3;              // entries that are tried at a cut
constexpr int kMiddle = 2;            // ... and at the knots between cuts: the two that enclose the best real number
constexpr double kNegligible = 1e-4;  // of the table's error
constexpr int kMaxRounds = 40, kMaxDescents = 4;
constexpr double kWorthwhile = 0.999;  // the gain that makes another descent through all strides worth its time

// A place where a cut may go.
struct Place {
  std::size_t candidate;
  double values[kEnds];
  std::int64_t entries[kEnds];
};
using Window = std::vector<Place>;

template <class Join>
class Local {
 public:
  explicit Local(const Problem& problem)
      : problem_(problem), samples_(problem.samples), c_(problem.candidates), knots_(problem.segments) {}

  // Candidates to either side of cuts with an even and with an odd number.
  using Reach = std::array<int, 2>;

  // The best cuts in windows around those of `fitted`; true if they are others.
  bool move(const Fitted& fitted, std::size_t stride, Reach reach, std::vector<std::size_t>& cuts) {
    negligible_ = fitted.error * kNegligible;
    const auto n = static_cast<std::size_t>(problem_.intervals);
    std::vector<Window> windows;
    for (std::size_t k = 0; k <= n; ++k) windows.push_back(window_around(fitted, k, stride, reach[k % 2]));

    std::vector<std::vector<int>> from(n + 1);
    std::vector<double> errors = low_tail(windows[0]);
    for (std::size_t k = 0; k < n; ++k) errors = advance(windows[k], windows[k + 1], k, errors, from[k + 1]);
    high_tail(windows[n], errors);

    const auto best = std::min_element(errors.begin(), errors.end());
    cuts = fitted.cuts;
    if (*best == kInfinity) return false;
    auto state = static_cast<int>(best - errors.begin());
    for (std::size_t k = n + 1; k-- > 0;) {
      cuts[k] = windows[k][state / kEnds].candidate;
      if (k > 0) state = from[k][state];
    }
    return cuts != fitted.cuts;
  }

 private:
  Window window_around(const Fitted& fitted, std::size_t k, std::size_t stride, int reach) const {
    const std::size_t n = static_cast<std::size_t>(problem_.intervals), here = fitted.cuts[k];
    const std::size_t entry = k == 0 ? 0 : k == n ? fitted.entries.size() - 1 : 1 + (k - 1) * problem_.segments;
    const std::int64_t moved = fitted.entries[entry] - problem_.lattice.nearest(c_.f[here]);
    const bool fixed = c_.required[here] || (problem_.fixed_ends && (k == 0 || k == n));
    Window window;
    for (int m = -reach; m <= reach; ++m) {
      const std::int64_t at = static_cast<std::int64_t>(here) + m * static_cast<std::int64_t>(stride);
      if (at < 0 || at >= static_cast<std::int64_t>(c_.size()) || (fixed && m != 0)) continue;
      Place place;
      place.candidate = static_cast<std::size_t>(at);
      const double f = c_.f[place.candidate];
      for (int s = 0; s < kEnds; ++s) {
        const bool pinned = c_.required[place.candidate] || f == 0.0 || (problem_.fixed_ends && fixed);
        place.entries[s] = problem_.lattice.nearest(f);
        if (!pinned)
          place.entries[s] =
              problem_.lattice.clamp(place.entries[s] + moved + (s - kEnds / 2) * problem_.lattice.quantum());
        place.values[s] = problem_.lattice.value(place.entries[s]);
      }
      window.push_back(place);
    }
    return window;
  }

  std::vector<double> low_tail(const Window& window) const {
    std::vector<double> errors;
    for (const Place& place : window)
      for (const double value : place.values)
        errors.push_back(c_.required_within(0, place.candidate)
                             ? kInfinity
                             : constant_error<Join>(samples_, 0, c_.first[place.candidate], value));
    return errors;
  }

  void high_tail(const Window& window, std::vector<double>& errors) const {
    std::size_t state = 0;
    for (const Place& place : window)
      for (const double value : place.values) {
        const bool possible = !c_.required_within(place.candidate + 1, c_.size());
        errors[state] = possible ? Join::join(errors[state], constant_error<Join>(samples_, c_.first[place.candidate],
                                                                                  samples_.size(), value))
                                 : kInfinity;
        ++state;
      }
  }

  std::vector<double> advance(const Window& left, const Window& right, std::size_t interval,
                              const std::vector<double>& before, std::vector<int>& from) {
    const bool edge = interval == 0 || interval + 1 == static_cast<std::size_t>(problem_.intervals);
    std::vector<double> after(right.size() * kEnds, kInfinity);
    from.assign(after.size(), 0);
    double errors[kEnds * kEnds];
    for (std::size_t a = 0; a < left.size(); ++a)
      for (std::size_t b = 0; b < right.size(); ++b) {
        const Place &l = left[a], &r = right[b];
        if (l.candidate >= r.candidate || c_.required_within(l.candidate + 1, r.candidate)) continue;
        if (edge || problem_.segments == 1) {
          knots_.at[0] = c_.at[l.candidate];
          knots_.at[1] = c_.at[r.candidate];
          knots_.first[0] = c_.first[l.candidate];
          knots_.first[1] = c_.first[r.candidate];
          const IntervalScale scale(c_.at[l.candidate], c_.at[r.candidate], 1);
          errors_between<kEnds, kEnds>(scale, 0, l.values, r.values, errors);
        } else {
          inner_errors(l, r, errors);
        }
        for (int s = 0; s < kEnds; ++s)
          for (int t = 0; t < kEnds; ++t) {
            const double error = Join::join(before[a * kEnds + s], errors[s * kEnds + t]);
            if (error < after[b * kEnds + t]) {
              after[b * kEnds + t] = error;
              from[b * kEnds + t] = static_cast<int>(a * kEnds) + s;
            }
          }
      }
    return after;
  }

  // errors[s * kEnds + t]: the least error of an interval with end values l.values[s] and r.values[t].
  void inner_errors(const Place& l, const Place& r, double* errors) {
    knots_.place(samples_, c_.at[l.candidate], c_.at[r.candidate], c_.first[l.candidate], c_.first[r.candidate]);
    knots_.move_targets(samples_, chord_share(problem_.largest));
    const int last = problem_.segments - 1;
    double values[kMiddle], next[kMiddle], best[kEnds * kMiddle], segment[kMiddle * kEnds];
    enclose(1, values);
    const IntervalScale scale(c_.at[l.candidate], c_.at[r.candidate], problem_.segments);
    errors_between<kEnds, kMiddle>(scale, 0, l.values, values, best);
    for (int k = 1; k < last; ++k) {
      enclose(k + 1, next);
      errors_between<kMiddle, kMiddle>(scale, k, values, next, segment);
      for (int s = 0; s < kEnds; ++s) {
        const double low = best[s * kMiddle], high = best[s * kMiddle + 1];
        for (int t = 0; t < kMiddle; ++t)
          best[s * kMiddle + t] = std::min(Join::join(low, segment[t]), Join::join(high, segment[kMiddle + t]));
      }
      values[0] = next[0];
      values[1] = next[1];
    }
    errors_between<kMiddle, kEnds>(scale, last, values, r.values, segment);
    for (int s = 0; s < kEnds; ++s)
      for (int t = 0; t < kEnds; ++t)
        errors[s * kEnds + t] =
            std::min(Join::join(best[s * kMiddle], segment[t]), Join::join(best[s * kMiddle + 1], segment[kEnds + t]));
  }

  // Computes the errors of segment k, which lies between knots_ k and k + 1.
  template <int kLefts, int kRights>
  void errors_between(const IntervalScale& scale, int k, const double* lefts, const double* rights, double* errors) {
    const std::size_t begin = knots_.first[k], end = knots_.first[k + 1];
    search_errors<Join, kLefts, kRights>(samples_, begin, end, scale, knots_.at[k], knots_.at[k + 1], k, lefts, rights,
                                         negligible_, errors);
  }

  void enclose(int knot, double* values) const {
    const double target = knots_.target[knot];
    const std::int64_t nearest = problem_.lattice.nearest(target);
    values[0] = problem_.lattice.value(nearest);
    const std::int64_t quantum = problem_.lattice.quantum();
    values[1] =
        problem_.lattice.value(problem_.lattice.clamp(values[0] < target ? nearest + quantum : nearest - quantum));
    if (knots_.f[knot] == 0.0) values[1] = values[0];
  }

  const Problem& problem_;
  const Samples& samples_;
  const Candidates& c_;
  double negligible_ = 0.0;
  Knots knots_;
};

template <class Join>
void search(const Problem& problem, int window, std::size_t stride, Fitted& fitted, const Progress& progress) {
  Local<Join> local(problem);
  double done = 0.0;
  const Progress alive = [&](double) { progress(done); };
  std::vector<std::size_t> cuts;
  const auto improve = [&](std::size_t apart, typename Local<Join>::Reach reach) {
    bool better = false;
    for (int round = 0; round < kMaxRounds && local.move(fitted, apart, reach, cuts); ++round) {
      Fitted moved = fit_cuts(problem, cuts, fitted.error * kNegligible, alive);
      if (!(moved.error < fitted.error)) break;
      fitted = std::move(moved);
      better = true;
    }
    return better;
  };
  const int wide = problem.largest ? 2 * window : window * window;  // largest errors have no short cut
  for (int descent = 0; descent < kMaxDescents; ++descent) {
    const double before = fitted.error;
    for (std::size_t apart = stride; apart > 0; apart = apart > 1 ? (2 * apart + 1) / 3 : 0) {
      improve(apart, {window, window});
      done = (descent + 0.5 / static_cast<double>(apart)) / kMaxDescents;
      progress(done);
    }
    for (const std::size_t apart : {std::size_t{7}, std::size_t{1}})
      while (improve(apart, {wide, 0}) | improve(apart, {0, wide})) continue;
    done = (descent + 1.0) / kMaxDescents;
    progress(done);
    if (!(fitted.error < before * kWorthwhile)) return;
  }
}

}  // namespace

Fitted fit_cuts(const Problem& problem, const std::vector<std::size_t>& cuts, double negligible,
                const Progress& progress) {
  const Candidates& c = problem.candidates;
  std::vector<double> at;
  for (const std::size_t cut : cuts) at.push_back(c.at[cut]);
  TableKnots knots = table_knots(problem, at);
  const std::size_t n = cuts.size() - 1;
  for (std::size_t k = 0; k <= n; ++k) {
    const std::size_t entry = k == 0 ? 0 : k == n ? knots.at.size() - 1 : 1 + (k - 1) * problem.segments;
    if (c.required[cuts[k]] || (problem.fixed_ends && (k == 0 || k == n))) knots.pinned[entry] = 1;
  }
  Fitted fitted;
  fitted.cuts = cuts;
  fitted.error =
      fit_entries(problem, knots, negligible > 0 ? Start::moved : Start::f, negligible, fitted.entries, progress);
  return fitted;
}

void search_local(const Problem& problem, int window, std::size_t stride, Fitted& fitted, const Progress& progress) {
  problem.largest ? search<LargestOf>(problem, window, stride, fitted, progress)
                  : search<SumOf>(problem, window, stride, fitted, progress);
}

}  // namespace qcore::lut_fit
