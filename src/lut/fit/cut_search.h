#pragma once

#include "lut/fit/problem.h"

namespace qcore::lut_fit {

struct CoarseResult {
  // Cuts of tables to start the local search from; the first is the optimum with entries f(knot), rounded.
  std::vector<std::vector<std::size_t>> starts;
  double error = kInfinity;  // of the first
  bool global = false;
  std::int64_t candidates = 0, pairs = 0, exact_pairs = 0;
};

// Dynamic programming over all tables with cuts out of about `count` of the candidates. The error of an interval
// between two candidates is bounded from below in a time that does not depend on its samples; it is computed where the
// bounds leave the possibility that the pair is part of a better table than the best that is known.
CoarseResult search_coarse(const Problem& problem, int count, const Progress& progress);

}  // namespace qcore::lut_fit
