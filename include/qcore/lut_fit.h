#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "qcore/export.h"
#include "qcore/tensor_view.h"

// Fitting of piecewise-linear tables (lut.h) to a function that is known at sample points:
//   error = sum of weight_i * |table(x_i) - f_i| over all samples, or the largest of weight_i * |table(x_i) - f_i|,
// of the subdivided table, its entries rounded to their dtype. One thread; the same result on every machine.
namespace qcore {

// All arrays fp32 on the CPU. x [n] strictly increasing, f [n], weight [n] not negative; everything finite.
struct LutSamples {
  TensorView x, f, weight;
};

struct LutFitOptions {
  int intervals = 10;       // 2 to 64; the first and the last have one segment
  int segments = 32;        // 1 to 256, of each interval between them
  bool half_values = true;  // entries are fp16, else fp32
  bool largest = false;     // minimize the largest weighted error instead of the sum
  bool fixed_ends = false;  // the first and the last cut are the first and the last candidate
  int coarse = 1024;        // candidates of the global search, beside zero, powers of two and the ends' neighbors
  int window = 8;           // the local search looks at so many candidates to either side of each cut at once
};

// Called with the fraction that is done, from the calling thread; what it throws ends the fit.
using LutFitProgress = std::function<void(double)>;

struct LutCuts {
  std::vector<float> cuts;  // [intervals + 1]
  double error = 0;  // of the table that fit_lut_values() will find or better, values of f between samples interpolated
  // The global search's optimum: no table with cuts out of its candidates and entries f(knot), rounded, has a smaller
  // error. `error` is at most this.
  double coarse_error = 0;
  bool global = false;  // the global search ran to its end
  std::int64_t candidates = 0, pairs = 0,
               exact_pairs = 0;  // of the global search; exact_pairs are those not ruled out by bounds
};

// Cut points out of `candidates` (fp32 [c], strictly increasing), by dynamic programming over an even subset of them,
// then over windows of neighboring candidates. `required` (fp32 [r], r >= 0, a subset of the candidates) are points
// that must be cuts with the entry f(x), rounded. Throws ValueError or TypeError for an impossible argument.
QCORE_API LutCuts fit_lut_cuts(const LutSamples& samples, const TensorView& candidates, const TensorView& required,
                               const LutFitOptions& options, const LutFitProgress& progress = {});

// Entries of a table with the given cuts (fp32 [n + 1]) that minimize the error. `knots` (fp32 [entries]) has f at the
// ends of all segments; `pinned` (u8 [entries]) is nonzero where the entry must be f(knot), rounded. Writes fp32
// [entries] to `values` and returns the error. Entries that no sample depends on are f(knot), rounded.
QCORE_API double fit_lut_values(const LutSamples& samples, const TensorView& cuts, const TensorView& knots,
                                const TensorView& pinned, const LutFitOptions& options, const TensorView& values,
                                const LutFitProgress& progress = {});

}  // namespace qcore
