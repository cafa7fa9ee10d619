#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bind.h"
#include "dlpack_views.h"
#include "qcore/quantize.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {
namespace {

nb::tuple shape_of(const QuantizedTensor& weight) {
  nb::list extents;
  for (int axis = 0; axis < weight.rank(); ++axis) extents.append(weight.shape(axis));
  return nb::tuple(extents);
}

template <void (QuantizedTensor::*write)(const TensorView&) const>
void write_to(const QuantizedTensor& weight, nb::handle out, const char* op) {
  const ArrayArgument array(out, op, "out");
  nb::gil_scoped_release release;
  (weight.*write)(array.view());
}

}  // namespace

void bind_quantize(nb::module_& m) {
  nb::class_<QuantizedTensor>(m, "QuantizedTensor")
      .def_prop_ro("shape", &shape_of)
      .def_prop_ro("rows", &QuantizedTensor::rows)
      .def_prop_ro("blocks", &QuantizedTensor::blocks)
      .def_prop_ro("bits", &QuantizedTensor::bits)
      .def_prop_ro("block_size", &QuantizedTensor::block_size)
      .def_prop_ro("symmetric", [](const QuantizedTensor& w) { return w.scheme() == Scheme::symmetric; })
      .def_prop_ro("device", [](const QuantizedTensor& w) { return name(w.device()); })
      .def_prop_ro("scale_dtype", [](const QuantizedTensor& w) { return name(w.scale_dtype()); })
      .def_prop_ro("nbytes", &QuantizedTensor::nbytes)
      .def_prop_ro("bits_per_weight", &QuantizedTensor::bits_per_weight)
      .def("codes",
           [](const QuantizedTensor& w, nb::handle out) { write_to<&QuantizedTensor::codes>(w, out, "codes"); })
      .def("nibbles",
           [](const QuantizedTensor& w, nb::handle out) { write_to<&QuantizedTensor::nibbles>(w, out, "nibbles"); })
      .def("scales",
           [](const QuantizedTensor& w, nb::handle out) { write_to<&QuantizedTensor::scales>(w, out, "scales"); })
      .def("offsets",
           [](const QuantizedTensor& w, nb::handle out) { write_to<&QuantizedTensor::offsets>(w, out, "offsets"); })
      .def("dequantize", [](const QuantizedTensor& w,
                            nb::handle out) { write_to<&QuantizedTensor::dequantize>(w, out, "dequantize"); })
      .def("to",
           [](const QuantizedTensor& w, bool cuda, int index) {
             nb::gil_scoped_release release;
             return w.to({cuda ? DeviceType::cuda : DeviceType::cpu, index});
           })
      .def("equal", [](const QuantizedTensor& a, const QuantizedTensor& b) {
        nb::gil_scoped_release release;
        return a.equal(b);
      });

  m.def(
      "quantize",
      [](nb::handle weight, int bits, std::int64_t block_size, bool symmetric, int method, bool half_scales,
         nb::handle importance) {
        const ArrayArgument array(weight, "quantize", "weight");
        const OptionalArray importance_array(importance, "quantize", "importance", "float32");
        const QuantizeOptions options{bits,
                                      block_size,
                                      symmetric ? Scheme::symmetric : Scheme::asymmetric,
                                      static_cast<Method>(method),
                                      half_scales ? DType::f16 : DType::f32,
                                      importance_array.get()};
        nb::gil_scoped_release release;
        return QuantizedTensor::quantize(array.view(), options);
      },
      "weight"_a, "bits"_a, "block_size"_a, "symmetric"_a, "method"_a, "half_scales"_a, "importance"_a.none());

  m.def(
      "from_parts",
      [](nb::handle codes, nb::handle scales, nb::handle offsets, int bits, std::int64_t block_size) {
        const ArrayArgument codes_array(codes, "from_parts", "codes", "int8");
        const ArrayArgument scales_array(scales, "from_parts", "scales", "float32");
        const OptionalArray offsets_array(offsets, "from_parts", "offsets", "float32");
        nb::gil_scoped_release release;
        return QuantizedTensor::from_parts(codes_array.view(), scales_array.view(), offsets_array.get(), bits,
                                           block_size);
      },
      "codes"_a, "scales"_a, "offsets"_a.none(), "bits"_a, "block_size"_a);

  m.def("quantize_activations", [](nb::handle x, std::int64_t block_size, int mode, nb::handle codes, nb::handle scales,
                                   nb::handle offsets, nb::handle sums) {
    const char* op = "quantize_activations";
    const ArrayArgument x_array(x, op, "x"), codes_array(codes, op, "codes"), scales_array(scales, op, "scales"),
        offsets_array(offsets, op, "offsets"), sums_array(sums, op, "sums");
    nb::gil_scoped_release release;
    quantize_activations(x_array.view(), block_size, static_cast<ActivationMode>(mode), codes_array.view(),
                         scales_array.view(), &offsets_array.view(), sums_array.view());
  });
}

}  // namespace qcore::bindings
