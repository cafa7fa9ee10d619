#include "qcore/lut_fit.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "formats/element.h"
#include "lut/fit/cut_refine.h"
#include "lut/fit/cut_search.h"
#include "lut/fit/value_fit.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

using namespace lut_fit;

constexpr const char* kOp = "lut fit";
constexpr int kMaxIntervals = 64, kMaxSegments = 256, kMaxCoarse = 4096, kMaxWindow = 64;

void check_vector(const char* argument, const TensorView& view, DType dtype, std::int64_t length) {
  check_dtype(kOp, argument, view, dtype);
  QCORE_CHECK_VALUE(view.device == kCpu, kOp, ": ", argument, " is on ", name(view.device), ", expected cpu");
  QCORE_CHECK_VALUE(view.rank == 1 && (length < 0 || view.shape[0] == length), kOp, ": ", argument, " has shape ",
                    shape_string(view), ", expected [", length < 0 ? "n" : std::to_string(length), "]");
}

std::vector<double> numbers(const char* argument, const TensorView& view, std::int64_t length = -1) {
  check_vector(argument, view, DType::f32, length);
  std::vector<double> found(static_cast<std::size_t>(view.shape[0]));
  for (std::size_t i = 0; i < found.size(); ++i) {
    found[i] = load_float(view.data, view.dtype, static_cast<std::int64_t>(i) * view.strides[0]);
    QCORE_CHECK_VALUE(std::isfinite(found[i]), kOp, ": ", argument, "[", i, "] is ", found[i],
                      ", expected a finite number");
  }
  return found;
}

std::vector<double> increasing(const char* argument, const TensorView& view) {
  std::vector<double> found = numbers(argument, view);
  for (std::size_t i = 1; i < found.size(); ++i)
    QCORE_CHECK_VALUE(found[i] > found[i - 1], kOp, ": ", argument, "[", i, "] is ", found[i], " after ", found[i - 1],
                      ", expected increasing numbers");
  return found;
}

Samples make_samples(const LutSamples& samples) {
  std::vector<double> x = increasing("x", samples.x);
  QCORE_CHECK_VALUE(x.size() >= 2 && x.size() < (std::size_t{1} << 31), kOp, ": x has ", x.size(),
                    " samples, expected 2 or more");
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<double> f = numbers("f", samples.f, n), w = numbers("weight", samples.weight, n);
  for (std::size_t i = 0; i < w.size(); ++i)
    QCORE_CHECK_VALUE(w[i] >= 0, kOp, ": weight[", i, "] is ", w[i], ", expected 0 or more");
  return Samples(std::move(x), std::move(f), std::move(w));
}

void check_options(const LutFitOptions& options) {
  QCORE_CHECK_VALUE(options.intervals >= 2 && options.intervals <= kMaxIntervals, kOp, ": intervals is ",
                    options.intervals, ", expected 2 to ", kMaxIntervals);
  QCORE_CHECK_VALUE(options.segments >= 1 && options.segments <= kMaxSegments, kOp, ": segments is ", options.segments,
                    ", expected 1 to ", kMaxSegments);
  QCORE_CHECK_VALUE(options.coarse > options.intervals && options.coarse <= kMaxCoarse, kOp, ": coarse is ",
                    options.coarse, ", expected ", options.intervals + 1, " to ", kMaxCoarse);
  QCORE_CHECK_VALUE(options.window >= 1 && options.window <= kMaxWindow, kOp, ": window is ", options.window,
                    ", expected 1 to ", kMaxWindow);
}

Candidates make_candidates(const Samples& samples, const TensorView& candidates, const TensorView& required,
                           const LutFitOptions& options) {
  Candidates made;
  made.at = increasing("candidates", candidates);
  const auto cuts = static_cast<std::size_t>(options.intervals) + 1;
  QCORE_CHECK_VALUE(made.size() >= cuts, kOp, ": candidates has shape [", made.size(), "], expected ", cuts,
                    " or more for as many cuts");
  made.required.assign(made.size(), 0);
  const std::vector<double> wanted = increasing("required", required);
  QCORE_CHECK_VALUE(wanted.size() + (options.fixed_ends ? 2 : 0) <= cuts, kOp, ": required has shape [", wanted.size(),
                    "], too many points for ", cuts, " cuts");
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto found = std::lower_bound(made.at.begin(), made.at.end(), wanted[i]);
    QCORE_CHECK_VALUE(found != made.at.end() && *found == wanted[i], kOp, ": required[", i, "] is ", wanted[i],
                      ", expected one of the candidates");
    made.required[static_cast<std::size_t>(found - made.at.begin())] = 1;
  }
  made.required_before.assign(1, 0);
  for (std::size_t i = 0; i < made.size(); ++i) {
    made.required_before.push_back(made.required_before.back() + made.required[i]);
    made.first.push_back(samples.first_from(made.at[i]));
    made.f.push_back(samples.interpolate(made.at[i], made.first[i]));
  }
  return made;
}

// A part of the progress.
Progress part(const LutFitProgress& progress, double from, double to) {
  return [&progress, from, to](double done) {
    if (progress) progress(from + (to - from) * done);
  };
}

}  // namespace

LutCuts fit_lut_cuts(const LutSamples& given, const TensorView& candidates, const TensorView& required,
                     const LutFitOptions& options, const LutFitProgress& progress) {
  check_options(options);
  const Samples samples = make_samples(given);
  const Problem problem{samples,
                        Lattice(options.half_values),
                        options.intervals,
                        options.segments,
                        options.largest,
                        options.fixed_ends,
                        make_candidates(samples, candidates, required, options)};
  const CoarseResult coarse = search_coarse(problem, options.coarse, part(progress, 0.0, 0.3));
  QCORE_CHECK_VALUE(coarse.error < kInfinity, kOp, ": required leaves no table of ", options.intervals,
                    " intervals between the candidates");

  const std::size_t apart =
      std::max<std::size_t>(1, problem.candidates.size() / static_cast<std::size_t>(options.coarse));
  Fitted best;
  const auto starts = static_cast<double>(coarse.starts.size());
  for (std::size_t s = 0; s < coarse.starts.size(); ++s) {
    const double from = 0.3 + 0.7 * static_cast<double>(s) / starts;
    Fitted fitted = fit_cuts(problem, coarse.starts[s], 0.0, part(progress, from, from));
    search_local(problem, options.window, apart, fitted, part(progress, from, from + 0.7 / starts));
    if (progress) progress(from + 0.7 / starts);
    if (fitted.error < best.error) best = std::move(fitted);
  }

  if (progress) progress(1.0);
  LutCuts result;
  for (const std::size_t cut : best.cuts) result.cuts.push_back(static_cast<float>(problem.candidates.at[cut]));
  result.error = best.error;
  result.coarse_error = coarse.error;
  result.global = coarse.global;
  result.candidates = coarse.candidates;
  result.pairs = coarse.pairs;
  result.exact_pairs = coarse.exact_pairs;
  return result;
}

double fit_lut_values(const LutSamples& given, const TensorView& cuts, const TensorView& knots,
                      const TensorView& pinned, const LutFitOptions& options, const TensorView& values,
                      const LutFitProgress& progress) {
  check_options(options);
  const Samples samples = make_samples(given);
  const std::vector<double> at = increasing("cuts", cuts);
  QCORE_CHECK_VALUE(at.size() == static_cast<std::size_t>(options.intervals) + 1, kOp, ": cuts has shape [", at.size(),
                    "], expected [", options.intervals + 1, "]");
  const Problem problem{
      samples, Lattice(options.half_values), options.intervals, options.segments, options.largest, options.fixed_ends,
      {}};
  TableKnots table = table_knots(problem, at);
  const auto entries = static_cast<std::int64_t>(table.at.size());
  const std::vector<double> exact = numbers("knots", knots, entries);
  for (std::size_t q = 0; q < exact.size(); ++q) table.target[q] += exact[q] - table.f[q];
  table.f = exact;
  check_vector("pinned", pinned, DType::u8, entries);
  check_vector("values", values, DType::f32, entries);
  check_output(kOp, "values", values);
  for (std::int64_t q = 0; q < entries; ++q)
    table.pinned[q] = static_cast<const std::uint8_t*>(pinned.data)[q * pinned.strides[0]];

  std::vector<std::int64_t> found, from_f;
  double error = fit_entries(problem, table, Start::moved, 0.0, found, part(progress, 0.0, 0.5));
  const double error_from_f = fit_entries(problem, table, Start::f, 0.0, from_f, part(progress, 0.5, 1.0));
  if (error_from_f < error) error = error_from_f, found = std::move(from_f);
  for (std::int64_t q = 0; q < entries; ++q)
    store_float(values.data, values.dtype, q * values.strides[0], static_cast<float>(problem.lattice.value(found[q])));
  return error;
}

}  // namespace qcore
