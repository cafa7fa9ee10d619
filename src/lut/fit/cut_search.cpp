#include "lut/fit/cut_search.h"

#include <algorithm>
#include <cmath>

namespace qcore::lut_fit {
namespace {

// Bounds are sums of differences of prefix sums: their own rounding must not rule out an optimum.
constexpr double kSlack = 1e-7, kLeastSlack = 1e-10;
constexpr int kGuesses = 16;
constexpr std::size_t kCurvaturePoints = 2048, kPiece = 256;
constexpr std::size_t kEdgeParts = 6, kSegmentParts = 3;

// Errors of intervals between candidates i < j: bounds at first, exact later.
class Matrix {
 public:
  explicit Matrix(std::size_t n) : n_(n), errors_(n * n, kInfinity), exact_(n * n, 0) {}
  double* row(std::size_t i) { return &errors_[i * n_]; }
  const double* row(std::size_t i) const { return &errors_[i * n_]; }
  double& at(std::size_t i, std::size_t j) { return errors_[i * n_ + j]; }
  bool exact(std::size_t i, std::size_t j) const { return exact_[i * n_ + j] != 0; }
  void set_exact(std::size_t i, std::size_t j, double error) {
    errors_[i * n_ + j] = error;
    exact_[i * n_ + j] = 1;
  }

 private:
  std::size_t n_;
  std::vector<double> errors_;
  std::vector<std::uint8_t> exact_;
};

template <class Join>
class Coarse {
 public:
  Coarse(const Problem& problem, int count, const Progress& progress)
      : problem_(problem),
        samples_(problem.samples),
        c_(problem.candidates),
        progress_(progress),
        chosen_(choose(static_cast<std::size_t>(count))),
        n_(chosen_.size()),
        least_(n_),
        likely_(n_),
        low_(n_, kInfinity),
        high_(n_, kInfinity),
        knots_(problem.segments) {}

  CoarseResult run() {
    fill_tails();
    fill_bounds();
    CoarseResult result;
    result.candidates = static_cast<std::int64_t>(n_);
    result.pairs = static_cast<std::int64_t>(n_ * (n_ - 1) / 2);
    // A good table by the estimates, then the best one by the bounds, until that is exact.
    double best = kInfinity;
    bool proven = false;
    for (int guess = 0; guess < kGuesses; ++guess) {
      const std::vector<std::size_t> path = shortest(likely_);
      const bool known = evaluate(path);
      best = std::min(best, error_of(path));
      if (known) break;
    }
    for (int guess = 0; guess < kGuesses && !proven; ++guess) {
      const std::vector<std::size_t> path = shortest(least_);
      proven = evaluate(path);
      best = std::min(best, error_of(path));
      progress_(0.4 + 0.2 * guess / kGuesses);
    }
    if (!proven) evaluate_possible(best);
    const std::vector<std::size_t> path = shortest(least_);
    result.error = error_of(path);
    result.global = true;
    result.exact_pairs = exact_pairs_;
    result.starts.push_back(names(path));
    progress_(0.9);
    fill_moved();
    result.starts.push_back(names(shortest(likely_)));
    progress_(1.0);
    return result;
  }

 private:
  // A third of `count` evenly spread, the others where curved and heavy parts of f want knots; the ends' neighbors;
  // zero, powers of two and what a table must have.
  std::vector<std::size_t> choose(std::size_t count) const {
    if (count >= c_.size()) count = c_.size();
    std::vector<std::size_t> chosen;
    const std::size_t last = c_.size() - 1, even = std::max<std::size_t>(count / 3, 2);
    for (std::size_t k = 0; k < even; ++k) chosen.push_back(k * last / (even - 1));
    if (count == c_.size())
      for (std::size_t i = 0; i <= last; ++i) chosen.push_back(i);
    const std::vector<double> wanted = wanted_knots();
    std::size_t at = 0;
    for (std::size_t k = 0, dense = count - even; k < dense; ++k) {
      const double share = wanted.back() * (static_cast<double>(k) + 0.5) / static_cast<double>(dense);
      while (at < last && wanted[at] < share) ++at;
      chosen.push_back(at);
    }
    for (std::size_t apart = 1; apart <= last; apart *= 2) chosen.insert(chosen.end(), {apart, last - apart});
    for (std::size_t i = 0; i <= last; ++i) {
      int exponent;
      if (c_.required[i] || c_.at[i] == 0.0 || std::fabs(std::frexp(c_.at[i], &exponent)) == 0.5) chosen.push_back(i);
    }
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    return chosen;
  }

  // How many knots there should be up to each candidate, in some unit: their best density grows with the third root of
  // curvature times weight; the fourth is near enough, and the same on every machine.
  std::vector<double> wanted_knots() const {
    const std::size_t apart = std::max<std::size_t>(1, c_.size() / kCurvaturePoints);
    std::vector<double> wanted(c_.size(), 0.0);
    for (std::size_t i = 0; i + 1 < c_.size(); ++i) {
      const std::size_t middle = std::min(std::max(i, apart), c_.size() - 1 - std::min(apart, c_.size() - 1));
      double density = 0.0;
      if (middle >= apart && middle + apart < c_.size()) {
        const std::size_t a = middle - apart, b = middle + apart;
        const double weight = samples_.weight(c_.first[a], c_.first[b]);
        const double chord = c_.f[a] + (c_.f[b] - c_.f[a]) * ((c_.at[middle] - c_.at[a]) / (c_.at[b] - c_.at[a]));
        // The rounding of a straight line to fp32 does not count as curvature.
        const double noise = 1e-6 * std::max(std::fabs(c_.f[a]), std::fabs(c_.f[b]));
        density = std::sqrt(std::sqrt(weight * std::max(std::fabs(chord - c_.f[middle]) - noise, 0.0)));
      }
      wanted[i + 1] = wanted[i] + density;
    }
    return wanted;
  }

  std::vector<std::size_t> names(const std::vector<std::size_t>& path) const {
    std::vector<std::size_t> cuts;
    for (const std::size_t i : path) cuts.push_back(chosen_[i]);
    return cuts;
  }

  double value(std::size_t i) const { return problem_.lattice.round(c_.f[chosen_[i]]); }

  void fill_tails() {
    for (std::size_t i = 0; i < n_; ++i) {
      const std::size_t at = chosen_[i];
      if (!c_.required_within(0, at) && (!problem_.fixed_ends || i == 0))
        low_[i] = constant_error<Join>(samples_, 0, c_.first[at], value(i));
      if (!c_.required_within(at + 1, c_.size()) && (!problem_.fixed_ends || i == n_ - 1))
        high_[i] = constant_error<Join>(samples_, c_.first[at], samples_.size(), value(i));
    }
  }

  template <class Error>
  void fill(const Error& error_of_pair, double progress_from, double progress_to) {
    for (std::size_t i = 0; i < n_; ++i) {
      for (std::size_t j = i + 1; j < n_; ++j)
        if (!c_.required_within(chosen_[i] + 1, chosen_[j])) error_of_pair(i, j);
      if (i % 32 == 0)
        progress_(progress_from + (progress_to - progress_from) * static_cast<double>(i) / static_cast<double>(n_));
    }
  }

  Bounds edge_bounds(std::size_t i, std::size_t j) const {
    const std::size_t a = chosen_[i], b = chosen_[j];
    return segment_bounds<Join>(samples_, c_.first[a], c_.first[b], {c_.at[a], c_.at[b], value(i), value(j), 0},
                                kEdgeParts);
  }

  void place(std::size_t i, std::size_t j) {
    const std::size_t a = chosen_[i], b = chosen_[j];
    knots_.place(samples_, c_.at[a], c_.at[b], c_.first[a], c_.first[b]);
  }

  Bounds inner_bounds() {
    segment_least_.resize(static_cast<std::size_t>(problem_.segments));
    Bounds bounds;
    double left = problem_.lattice.round(knots_.target[0]);
    for (int k = 0; k < problem_.segments; ++k) {
      const double right = problem_.lattice.round(knots_.target[k + 1]);
      const Bounds segment = segment_bounds<Join>(samples_, knots_.first[k], knots_.first[k + 1],
                                                  {knots_.at[k], knots_.at[k + 1], left, right, k}, kSegmentParts);
      segment_least_[k] = segment.least;
      bounds.least = Join::join(bounds.least, segment.least);
      bounds.likely = Join::join(bounds.likely, segment.likely);
      left = right;
    }
    return bounds;
  }

  // Bounds, and estimates of what they are bounds of.
  void fill_bounds() {
    fill(
        [&](std::size_t i, std::size_t j) {
          const Bounds edge = edge_bounds(i, j);
          place(i, j);
          const Bounds inner = inner_bounds();
          least_.edge.at(i, j) = edge.least;
          least_.inner.at(i, j) = inner.least;
          likely_.edge.at(i, j) = edge.likely;
          likely_.inner.at(i, j) = inner.likely;
        },
        0.0, 0.4);
  }

  // Estimates with entries moved off f, as the fit of entries will do.
  void fill_moved() {
    fill(
        [&](std::size_t i, std::size_t j) {
          likely_.edge.at(i, j) = edge_bounds(i, j).likely;
          place(i, j);
          knots_.move_targets(samples_, chord_share(problem_.largest));
          likely_.inner.at(i, j) = inner_bounds().likely;
        },
        0.9, 1.0);
  }

  // Infinity once it is beyond `limit`, for which long runs of samples are taken piece by piece.
  double limited_error(std::size_t begin, std::size_t end, const IntervalScale& scale, int segment, double left,
                       double right, double limit) const {
    double error = 0.0;
    for (std::size_t i = begin; i < end && error <= limit; i += kPiece)
      error =
          Join::join(error, segment_error<Join>(samples_, i, std::min(i + kPiece, end), scale, segment, left, right));
    return error <= limit ? error : kInfinity;
  }

  double edge_error(std::size_t i, std::size_t j, double limit) const {
    const std::size_t a = chosen_[i], b = chosen_[j];
    return limited_error(c_.first[a], c_.first[b], IntervalScale(c_.at[a], c_.at[b], 1), 0, value(i), value(j), limit);
  }

  // Infinity if it is beyond `limit`, which shows the sooner as segments with many samples come first and the others'
  // bounds count meanwhile.
  double inner_error(std::size_t i, std::size_t j, double limit) {
    place(i, j);
    const auto n = static_cast<std::size_t>(problem_.segments);
    const IntervalScale scale(c_.at[chosen_[i]], c_.at[chosen_[j]], problem_.segments);
    double bounds = inner_bounds().least;
    order_.resize(n);
    for (std::size_t k = 0; k < n; ++k) order_[k] = k;
    std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      const std::size_t samples_a = knots_.first[a + 1] - knots_.first[a];
      const std::size_t samples_b = knots_.first[b + 1] - knots_.first[b];
      return samples_a != samples_b ? samples_a > samples_b : a < b;
    });
    errors_ = segment_least_;
    for (const std::size_t k : order_) {
      const double others = std::is_same_v<Join, SumOf> ? bounds - errors_[k] : 0.0;
      const double error =
          limited_error(knots_.first[k], knots_.first[k + 1], scale, static_cast<int>(k),
                        problem_.lattice.round(knots_.f[k]), problem_.lattice.round(knots_.f[k + 1]), limit - others);
      if (error == kInfinity) return kInfinity;
      bounds = others + error;
      errors_[k] = error;
    }
    double error = 0.0;
    for (const double segment : errors_) error = Join::join(error, segment);
    return error;
  }

  bool is_edge(int interval) const { return interval == 0 || interval == problem_.intervals - 1; }
  struct Matrices {
    explicit Matrices(std::size_t n) : edge(n), inner(n) {}
    Matrix edge, inner;
  };
  Matrix& matrix(Matrices& of, int interval) { return is_edge(interval) ? of.edge : of.inner; }

  // errors[k][j]: the least error of samples below cut k, if that is candidate j.
  std::vector<std::vector<double>> forward(Matrices& of) {
    std::vector<std::vector<double>> errors{low_};
    for (int k = 0; k < problem_.intervals; ++k) {
      const std::vector<double>& before = errors.back();
      std::vector<double> next(n_, kInfinity);
      for (std::size_t i = 0; i < n_; ++i) {
        const double* row = matrix(of, k).row(i);
        const double start = before[i];
        if (start == kInfinity) continue;
        for (std::size_t j = i + 1; j < n_; ++j) {
          const double error = Join::join(start, row[j]);
          next[j] = error < next[j] ? error : next[j];
        }
      }
      errors.push_back(std::move(next));
    }
    return errors;
  }

  // errors[k][i]: the least error of samples from cut k on, if that is candidate i.
  std::vector<std::vector<double>> backward(Matrices& of) {
    std::vector<std::vector<double>> errors(static_cast<std::size_t>(problem_.intervals) + 1);
    errors.back() = high_;
    for (int k = problem_.intervals - 1; k >= 0; --k) {
      std::vector<double>& here = errors[k];
      here.assign(n_, kInfinity);
      for (std::size_t i = 0; i < n_; ++i) {
        const double* row = matrix(of, k).row(i);
        double least = kInfinity;
        for (std::size_t j = i + 1; j < n_; ++j) {
          const double error = Join::join(row[j], errors[k + 1][j]);
          least = error < least ? error : least;
        }
        here[i] = least;
      }
    }
    return errors;
  }

  std::vector<std::size_t> shortest(Matrices& of) {
    const auto errors = forward(of);
    std::vector<std::size_t> path(errors.size());
    double least = kInfinity;
    for (std::size_t j = 0; j < n_; ++j) {
      const double error = Join::join(errors.back()[j], high_[j]);
      if (error < least) least = error, path.back() = j;
    }
    for (int k = problem_.intervals - 1; k >= 0; --k) {
      const std::size_t j = path[k + 1];
      least = kInfinity;
      for (std::size_t i = 0; i < j; ++i) {
        const double error = Join::join(errors[k][i], matrix(of, k).at(i, j));
        if (error < least) least = error, path[k] = i;
      }
    }
    return path;
  }

  // Makes the errors along a path exact; true if they were.
  bool evaluate(const std::vector<std::size_t>& path) {
    bool were_exact = true;
    for (int k = 0; k < problem_.intervals; ++k) {
      const std::size_t i = path[k], j = path[k + 1];
      Matrix& exact = matrix(least_, k);
      if (!exact.exact(i, j)) {
        were_exact = false;
        exact.set_exact(i, j, is_edge(k) ? edge_error(i, j, kInfinity) : inner_error(i, j, kInfinity));
        ++exact_pairs_;
      }
      matrix(likely_, k).at(i, j) = exact.at(i, j);
    }
    return were_exact;
  }

  double error_of(const std::vector<std::size_t>& path) {
    double error = low_[path.front()];
    for (int k = 0; k < problem_.intervals; ++k) error = Join::join(error, matrix(least_, k).at(path[k], path[k + 1]));
    return Join::join(error, high_[path.back()]);
  }

  // Makes exact what could be part of a table with an error of at most `best`.
  void evaluate_possible(double best) {
    const double limit = best * (1 + kSlack) + kLeastSlack;
    const auto before = forward(least_), after = backward(least_);
    const int last = problem_.intervals - 1;
    for (std::size_t i = 0; i < n_; ++i) {
      for (std::size_t j = i + 1; j < n_; ++j) {
        // Returns the largest cost of an interval beside the least cost of the others.
        const auto left_for = [&](double others) { return std::is_same_v<Join, SumOf> ? limit - others : limit; };
        double rest = std::min(Join::join(before[0][i], after[1][j]), Join::join(before[last][i], after[last + 1][j]));
        if (Join::join(rest, least_.edge.at(i, j)) > limit) {
          least_.edge.set_exact(i, j, kInfinity);
        } else if (!least_.edge.exact(i, j)) {
          least_.edge.set_exact(i, j, edge_error(i, j, left_for(rest)));
          ++exact_pairs_;
        }
        rest = kInfinity;
        for (int k = 1; k < last; ++k) rest = std::min(rest, Join::join(before[k][i], after[k + 1][j]));
        if (Join::join(rest, least_.inner.at(i, j)) > limit) {
          least_.inner.set_exact(i, j, kInfinity);
        } else if (!least_.inner.exact(i, j)) {
          least_.inner.set_exact(i, j, inner_error(i, j, left_for(rest)));
          ++exact_pairs_;
        }
      }
      if (i % 32 == 0) progress_(0.6 + 0.3 * static_cast<double>(i) / static_cast<double>(n_));
    }
  }

  const Problem& problem_;
  const Samples& samples_;
  const Candidates& c_;
  const Progress& progress_;
  const std::vector<std::size_t> chosen_;
  const std::size_t n_;
  Matrices least_, likely_;         // likely_ has estimates for the same intervals
  std::vector<double> low_, high_;  // of the tails
  Knots knots_;
  std::vector<double> segment_least_, errors_;  // of an interval's segments
  std::vector<std::size_t> order_;
  std::int64_t exact_pairs_ = 0;
};

}  // namespace

CoarseResult search_coarse(const Problem& problem, int count, const Progress& progress) {
  return problem.largest ? Coarse<LargestOf>(problem, count, progress).run()
                         : Coarse<SumOf>(problem, count, progress).run();
}

}  // namespace qcore::lut_fit
