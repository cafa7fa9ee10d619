#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bind.h"
#include "dlpack_views.h"
#include "qcore/lut.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {
namespace {

template <void (LutTable::*write)(const TensorView&) const>
void write_to(const LutTable& table, nb::handle out) {
  const ArrayArgument array(out, "lut table", "out", "float32");
  (table.*write)(array.view());
}

}  // namespace

void bind_lut(nb::module_& m) {
  nb::class_<LutTable>(m, "LutTable")
      .def_static("from_parts",
                  [](nb::handle cuts, nb::handle values, LutReduction reduction) {
                    const ArrayArgument cuts_array(cuts, "lut table", "cuts", "float32");
                    const ArrayArgument values_array(values, "lut table", "values", "float16 or float32");
                    return LutTable::from_parts(cuts_array.view(), values_array.view(), reduction);
                  })
      .def_static("builtin", &LutTable::builtin)
      .def_prop_ro("intervals", &LutTable::intervals)
      .def_prop_ro("segments", &LutTable::segments)
      .def_prop_ro("entries", &LutTable::entries)
      .def_prop_ro("reduction", &LutTable::reduction)
      .def_prop_ro("value_dtype", [](const LutTable& table) { return name(table.value_dtype()); })
      .def("cuts", write_to<&LutTable::cuts>)
      .def("values", write_to<&LutTable::values>)
      .def("equal", &LutTable::equal);

  m.def("builtin_luts", [] {
    nb::list found;
    for (const BuiltinLut& table : builtin_luts()) found.append(nb::make_tuple(table.name, table.range_reduction));
    return found;
  });
  m.def("lut", [](nb::handle x, const LutTable& table, nb::handle out, std::uintptr_t stream) {
    const ArrayArgument x_array(x, "lut", "x"), out_array(out, "lut", "out");
    nb::gil_scoped_release release;
    lut(x_array.view(), table, out_array.view(), stream_of(stream));
  });
  m.def("softmax", [](nb::handle x, int axis, nb::handle out, std::uintptr_t stream) {
    const ArrayArgument x_array(x, "softmax", "x"), out_array(out, "softmax", "out");
    nb::gil_scoped_release release;
    softmax(x_array.view(), axis, out_array.view(), stream_of(stream));
  });
  m.def(
      "rms_norm",
      [](nb::handle x, nb::handle weight, float eps, nb::handle out, std::uintptr_t stream) {
        const ArrayArgument x_array(x, "rms_norm", "x"), out_array(out, "rms_norm", "out");
        const OptionalArray weight_array(weight, "rms_norm", "weight");
        nb::gil_scoped_release release;
        rms_norm(x_array.view(), weight_array.get(), eps, out_array.view(), stream_of(stream));
      },
      "x"_a, "weight"_a.none(), "eps"_a, "out"_a, "stream"_a);
}

}  // namespace qcore::bindings
