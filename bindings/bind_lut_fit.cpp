#include <nanobind/nanobind.h>

#include "bind.h"
#include "dlpack_views.h"
#include "qcore/lut_fit.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {
namespace {

constexpr const char* kOp = "lut fit";

struct SampleArrays {
  SampleArrays(nb::handle x, nb::handle f, nb::handle weight)
      : x(x, kOp, "x", "float32"), f(f, kOp, "f", "float32"), weight(weight, kOp, "weight", "float32") {}
  LutSamples samples() const { return {x.view(), f.view(), weight.view()}; }
  ArrayArgument x, f, weight;
};

// Runs without the GIL, which is taken for each call; an exception of Python's, Ctrl-C included, ends the fit.
LutFitProgress progress_of(nb::handle progress) {
  return [progress](double done) {
    nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    if (!progress.is_none()) progress(done);
  };
}

LutFitOptions options_of(int intervals, int segments, bool half_values, bool largest) {
  LutFitOptions options;
  options.intervals = intervals;
  options.segments = segments;
  options.half_values = half_values;
  options.largest = largest;
  return options;
}

}  // namespace

void bind_lut_fit(nb::module_& m) {
  m.def(
      "fit_lut_cuts",
      [](nb::handle x, nb::handle f, nb::handle weight, nb::handle candidates, nb::handle required, int intervals,
         int segments, bool half_values, bool largest, bool fixed_ends, int coarse, int window, nb::handle progress) {
        const SampleArrays arrays(x, f, weight);
        const ArrayArgument candidates_array(candidates, kOp, "candidates", "float32"),
            required_array(required, kOp, "required", "float32");
        LutFitOptions options = options_of(intervals, segments, half_values, largest);
        options.fixed_ends = fixed_ends;
        options.coarse = coarse;
        options.window = window;
        LutCuts found;
        {
          nb::gil_scoped_release release;
          found = fit_lut_cuts(arrays.samples(), candidates_array.view(), required_array.view(), options,
                               progress_of(progress));
        }
        nb::list cuts;
        for (const float cut : found.cuts) cuts.append(cut);
        return nb::make_tuple(cuts, found.error, found.coarse_error, found.global, found.candidates, found.pairs,
                              found.exact_pairs);
      },
      "x"_a, "f"_a, "weight"_a, "candidates"_a, "required"_a, "intervals"_a, "segments"_a, "half_values"_a, "largest"_a,
      "fixed_ends"_a, "coarse"_a, "window"_a, "progress"_a.none());

  m.def(
      "fit_lut_values",
      [](nb::handle x, nb::handle f, nb::handle weight, nb::handle cuts, nb::handle knots, nb::handle pinned,
         int intervals, int segments, bool half_values, bool largest, nb::handle values, nb::handle progress) {
        const SampleArrays arrays(x, f, weight);
        const ArrayArgument cuts_array(cuts, kOp, "cuts", "float32"), knots_array(knots, kOp, "knots", "float32"),
            pinned_array(pinned, kOp, "pinned", "uint8"), values_array(values, kOp, "values", "float32");
        const LutFitOptions options = options_of(intervals, segments, half_values, largest);
        nb::gil_scoped_release release;
        return fit_lut_values(arrays.samples(), cuts_array.view(), knots_array.view(), pinned_array.view(), options,
                              values_array.view(), progress_of(progress));
      },
      "x"_a, "f"_a, "weight"_a, "cuts"_a, "knots"_a, "pinned"_a, "intervals"_a, "segments"_a, "half_values"_a,
      "largest"_a, "values"_a, "progress"_a.none());
}

}  // namespace qcore::bindings
