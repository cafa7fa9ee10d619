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

void bind_linear(nb::module_& m) {
  m.def(
      "linear",
      [](nb::handle x, const QuantizedTensor& weight, nb::handle bias, nb::handle out, ComputeMode compute,
         ActivationKind activation, float lo, float hi, std::uintptr_t stream) {
        const ArrayArgument x_array(x, "linear", "x"), out_array(out, "linear", "out");
        const OptionalArray bias_array(bias, "linear", "bias");
        LinearOptions options;
        options.compute = compute;
        options.activation = {activation, lo, hi};
        options.stream = reinterpret_cast<void*>(stream);
        nb::gil_scoped_release release;
        linear(x_array.view(), weight, bias_array.get(), out_array.view(), options);
      },
      "x"_a, "weight"_a, "bias"_a.none(), "out"_a, "compute"_a, "activation"_a, "lo"_a, "hi"_a, "stream"_a);

  m.def(
      "grouped_linear",
      [](nb::handle x, const QuantizedTensor& weight, nb::handle row_counts, nb::handle bias, nb::handle out,
         ComputeMode compute, ActivationKind activation, float lo, float hi, std::uintptr_t stream) {
        const ArrayArgument x_array(x, "grouped_linear", "x"), out_array(out, "grouped_linear", "out");
        const ArrayArgument count_array(row_counts, "grouped_linear", "row_counts", "int32 or int64");
        const OptionalArray bias_array(bias, "grouped_linear", "bias");
        LinearOptions options;
        options.compute = compute;
        options.activation = {activation, lo, hi};
        options.stream = reinterpret_cast<void*>(stream);
        nb::gil_scoped_release release;
        grouped_linear(x_array.view(), weight, count_array.view(), bias_array.get(), out_array.view(), options);
      },
      "x"_a, "weight"_a, "row_counts"_a, "bias"_a.none(), "out"_a, "compute"_a, "activation"_a, "lo"_a, "hi"_a,
      "stream"_a);

  m.def(
      "embedding",
      [](nb::handle indices, const QuantizedTensor& weight, nb::handle out, std::uintptr_t stream) {
        const ArrayArgument index_array(indices, "embedding", "indices", "int32 or int64"),
            out_array(out, "embedding", "out");
        nb::gil_scoped_release release;
        embedding(index_array.view(), weight, out_array.view(), reinterpret_cast<void*>(stream));
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
