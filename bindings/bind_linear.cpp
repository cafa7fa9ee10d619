#include <nanobind/nanobind.h>

#include "bind.h"
#include "dlpack_views.h"
#include "qcore/embedding.h"
#include "qcore/grouped_linear.h"
#include "qcore/hadamard.h"
#include "qcore/linear.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {

namespace {

LinearOptions linear_options(ComputeMode compute, float x_scale, ActivationKind activation, float lo, float hi,
                             std::uintptr_t stream) {
  LinearOptions options;
  options.compute = compute;
  options.x_scale = x_scale;
  options.activation = {activation, lo, hi};
  options.stream = stream_of(stream);
  return options;
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def(
      "linear",
      [](nb::handle x, const QuantizedTensor& weight, nb::handle bias, nb::handle out, ComputeMode compute,
         float x_scale, ActivationKind activation, float lo, float hi, std::uintptr_t stream) {
        const ArrayArgument x_array(x, "linear", "x"), out_array(out, "linear", "out");
        const OptionalArray bias_array(bias, "linear", "bias");
        const LinearOptions options = linear_options(compute, x_scale, activation, lo, hi, stream);
        nb::gil_scoped_release release;
        linear(x_array.view(), weight, bias_array.get(), out_array.view(), options);
      },
      "x"_a, "weight"_a, "bias"_a.none(), "out"_a, "compute"_a, "x_scale"_a, "activation"_a, "lo"_a, "hi"_a,
      "stream"_a);

  m.def(
      "linear_of_codes",
      [](const nb::tuple& x, const QuantizedTensor& weight, nb::handle bias, nb::handle out, ActivationKind activation,
         float lo, float hi, std::uintptr_t stream) {
        const QuantizedArgument x_arrays(x, "linear", "x");
        const ArrayArgument out_array(out, "linear", "out");
        const OptionalArray bias_array(bias, "linear", "bias");
        const LinearOptions options = linear_options(ComputeMode::int8, 0.0f, activation, lo, hi, stream);
        nb::gil_scoped_release release;
        linear(x_arrays.get(), weight, bias_array.get(), out_array.view(), options);
      },
      "x"_a, "weight"_a, "bias"_a.none(), "out"_a, "activation"_a, "lo"_a, "hi"_a, "stream"_a);

  m.def(
      "grouped_linear",
      [](nb::handle x, const QuantizedTensor& weight, nb::handle row_counts, nb::handle bias, nb::handle out,
         ComputeMode compute, float x_scale, ActivationKind activation, float lo, float hi, std::uintptr_t stream) {
        const ArrayArgument x_array(x, "grouped_linear", "x"), out_array(out, "grouped_linear", "out");
        const ArrayArgument count_array(row_counts, "grouped_linear", "row_counts", "int32 or int64");
        const OptionalArray bias_array(bias, "grouped_linear", "bias");
        const LinearOptions options = linear_options(compute, x_scale, activation, lo, hi, stream);
        nb::gil_scoped_release release;
        grouped_linear(x_array.view(), weight, count_array.view(), bias_array.get(), out_array.view(), options);
      },
      "x"_a, "weight"_a, "row_counts"_a, "bias"_a.none(), "out"_a, "compute"_a, "x_scale"_a, "activation"_a, "lo"_a,
      "hi"_a, "stream"_a);

  m.def(
      "grouped_linear_of_codes",
      [](const nb::tuple& x, const QuantizedTensor& weight, nb::handle row_counts, nb::handle bias, nb::handle out,
         ActivationKind activation, float lo, float hi, std::uintptr_t stream) {
        const QuantizedArgument x_arrays(x, "grouped_linear", "x");
        const ArrayArgument out_array(out, "grouped_linear", "out");
        const ArrayArgument count_array(row_counts, "grouped_linear", "row_counts", "int32 or int64");
        const OptionalArray bias_array(bias, "grouped_linear", "bias");
        const LinearOptions options = linear_options(ComputeMode::int8, 0.0f, activation, lo, hi, stream);
        nb::gil_scoped_release release;
        grouped_linear(x_arrays.get(), weight, count_array.view(), bias_array.get(), out_array.view(), options);
      },
      "x"_a, "weight"_a, "row_counts"_a, "bias"_a.none(), "out"_a, "activation"_a, "lo"_a, "hi"_a, "stream"_a);

  m.def(
      "embedding",
      [](nb::handle indices, const QuantizedTensor& weight, nb::handle out, std::uintptr_t stream) {
        const ArrayArgument index_array(indices, "embedding", "indices", "int32 or int64"),
            out_array(out, "embedding", "out");
        nb::gil_scoped_release release;
        embedding(index_array.view(), weight, out_array.view(), stream_of(stream));
      },
      "indices"_a, "weight"_a, "out"_a, "stream"_a);

  m.def(
      "hadamard",
      [](nb::handle x, std::int64_t block, nb::handle out) {
        const ArrayArgument x_array(x, "hadamard", "x"), out_array(out, "hadamard", "out");
        nb::gil_scoped_release release;
        hadamard(x_array.view(), block, out_array.view());
      },
      "x"_a, "block"_a, "out"_a);
}

}  // namespace qcore::bindings
