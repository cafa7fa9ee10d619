#pragma once

#include "lut/fit/problem.h"

namespace qcore::lut_fit {

// Moves cuts and entries together, by dynamic programming over windows of `window` candidates to either side of each
// cut, with distances of `stride` candidates at first and of single ones at last, until nothing improves.
// The entries of `fitted` are those of fit_entries() for its cuts, before and after.
void search_local(const Problem& problem, int window, std::size_t stride, Fitted& fitted, const Progress& progress);

// The entries and the error of the table with these cuts; quicker with `negligible` > 0, as in fit_entries().
Fitted fit_cuts(const Problem& problem, const std::vector<std::size_t>& cuts, double negligible,
                const Progress& progress);

}  // namespace qcore::lut_fit
