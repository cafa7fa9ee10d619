#include "lut/fit/value_fit.h"

#include <cstdlib>

namespace qcore::lut_fit {
namespace {

constexpr int kSteps = 5, kMaxRounds = 200;

// An error, and for equal ones how far the entries are from f(knot), in steps.
struct Rank {
  double error = kInfinity;
  std::int64_t distance = 0;
  bool operator<(const Rank& other) const {
    return error < other.error || (error == other.error && distance < other.distance);
  }
};

template <class Join>
class Chain {
 public:
  Chain(const Problem& problem, const TableKnots& knots, double negligible, std::vector<std::int64_t>& entries)
      : samples_(problem.samples),
        lattice_(problem.lattice),
        knots_(knots),
        negligible_(negligible),
        entries_(entries),
        n_(entries.size()),
        nearest_(n_),
        choices_(n_),
        from_(n_) {
    for (std::size_t q = 0; q < n_; ++q) {
      nearest_[q] = lattice_.nearest(knots.f[q]);
      if (pinned(q)) entries_[q] = nearest_[q];
    }
  }

  // The best of entries_ + {-2 .. 2} * step; true if that moved one.
  bool improve(std::int64_t step, double& error) {
    Rank ranks[kSteps];
    double values[kSteps], next_values[kSteps];
    choices(0, step, values);
    for (int s = 0; s < kSteps; ++s)
      ranks[s] = {constant_error<Join>(samples_, 0, knots_.first[0], values[s]), distance(0, s)};
    for (std::size_t q = 0; q + 1 < n_; ++q) {
      choices(q + 1, step, next_values);
      double errors[kSteps * kSteps] = {};
      if (knots_.first[q] < knots_.first[q + 1])
        search_errors<Join, kSteps, kSteps>(samples_, knots_.first[q], knots_.first[q + 1],
                                            knots_.scales[knots_.interval[q]], knots_.at[q], knots_.at[q + 1],
                                            knots_.segment[q], values, next_values, negligible_, errors);
      Rank next[kSteps];
      for (int r = 0; r < kSteps; ++r)
        for (int l = 0; l < kSteps; ++l) {
          const Rank rank{Join::join(ranks[l].error, errors[l * kSteps + r]), ranks[l].distance + distance(q + 1, r)};
          if (rank < next[r]) next[r] = rank, from_[q + 1].state[r] = l;
        }
      for (int s = 0; s < kSteps; ++s) ranks[s] = next[s], values[s] = next_values[s];
    }
    int state = 0;
    Rank best;
    for (int s = 0; s < kSteps; ++s) {
      ranks[s].error =
          Join::join(ranks[s].error, constant_error<Join>(samples_, knots_.first[n_ - 1], samples_.size(), values[s]));
      if (ranks[s] < best) best = ranks[s], state = s;
    }
    bool moved = false;
    for (std::size_t q = n_; q-- > 0;) {
      moved |= entries_[q] != choices_[q].entry[state];
      entries_[q] = choices_[q].entry[state];
      if (q > 0) state = from_[q].state[state];
    }
    error = best.error;
    return moved;
  }

 private:
  struct Choices {
    std::int64_t entry[kSteps];
  };
  struct States {
    int state[kSteps];
  };

  bool pinned(std::size_t q) const { return knots_.pinned[q] != 0 || knots_.f[q] == 0.0; }

  void choices(std::size_t q, std::int64_t step, double* values) {
    for (int s = 0; s < kSteps; ++s) {
      const std::int64_t entry = pinned(q) ? nearest_[q] : lattice_.clamp(entries_[q] + (s - kSteps / 2) * step);
      choices_[q].entry[s] = entry;
      values[s] = lattice_.value(entry);
    }
  }

  std::int64_t distance(std::size_t q, int s) const { return std::llabs(choices_[q].entry[s] - nearest_[q]); }

  const Samples& samples_;
  const Lattice& lattice_;
  const TableKnots& knots_;
  const double negligible_;
  std::vector<std::int64_t>& entries_;
  const std::size_t n_;
  std::vector<std::int64_t> nearest_;
  std::vector<Choices> choices_;
  std::vector<States> from_;
};

template <class Join>
double fit(const Problem& problem, const TableKnots& knots, Start start, double negligible,
           std::vector<std::int64_t>& entries, const Progress& progress) {
  const bool moved = start == Start::moved;
  entries.clear();
  for (const double value : moved ? knots.target : knots.f) entries.push_back(problem.lattice.nearest(value));
  Chain<Join> chain(problem, knots, negligible, entries);
  const std::int64_t first_step = problem.lattice.coarsest() / (moved ? 8 : 1);
  const std::int64_t last_step = negligible > 0 ? problem.lattice.quantum() : 1;
  double error = kInfinity;
  for (std::int64_t step = first_step; step > 0; step = step > last_step ? (step + 3) / 4 : 0) {
    for (int round = 0; round < kMaxRounds && chain.improve(step, error); ++round) continue;
    progress(1.0 - static_cast<double>(step) / static_cast<double>(first_step));
  }
  progress(1.0);
  return error;
}

}  // namespace

TableKnots table_knots(const Problem& problem, const std::vector<double>& cuts) {
  TableKnots table;
  const Samples& samples = problem.samples;
  const std::size_t intervals = cuts.size() - 1;
  for (std::size_t i = 0; i < intervals; ++i) {
    const int parts = i == 0 || i == intervals - 1 ? 1 : problem.segments;
    Knots knots(parts);
    knots.place(samples, cuts[i], cuts[i + 1], samples.first_from(cuts[i]), samples.first_from(cuts[i + 1]));
    knots.move_targets(samples, chord_share(problem.largest));
    table.scales.emplace_back(cuts[i], cuts[i + 1], parts);
    const std::size_t kept = knots.at.size() - (i == intervals - 1 ? 0 : 1);
    for (std::size_t k = 0; k < kept; ++k) {
      table.at.push_back(knots.at[k]);
      table.f.push_back(knots.f[k]);
      table.target.push_back(knots.target[k]);
      table.first.push_back(knots.first[k]);
      table.interval.push_back(i);
      table.segment.push_back(static_cast<int>(k));
    }
  }
  table.pinned.assign(table.at.size(), 0);
  return table;
}

double fit_entries(const Problem& problem, const TableKnots& knots, Start start, double negligible,
                   std::vector<std::int64_t>& entries, const Progress& progress) {
  return problem.largest ? fit<LargestOf>(problem, knots, start, negligible, entries, progress)
                         : fit<SumOf>(problem, knots, start, negligible, entries, progress);
}

}  // namespace qcore::lut_fit
