#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bind.h"
#include "dlpack_views.h"
#include "qcore/static.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {
namespace {

constexpr const char* kCodes = "int8 or uint8";

using FormatTuple = std::tuple<DType, float, int>;  // dtype, scale, zero point

StaticOptions options_of(const FormatTuple& x, const FormatTuple& y, int w_zero_point, int lo, int hi) {
  const auto format_of = [](const FormatTuple& values) {
    return StaticFormat{std::get<0>(values), std::get<1>(values), std::get<2>(values)};
  };
  return {format_of(x), format_of(y), w_zero_point, lo, hi};
}

// The parts of a layer for the length of its construction.
struct Parts {
  ArrayArgument weight, w_scale;
  OptionalArray bias;
  Parts(const char* op, nb::handle weight_, nb::handle w_scale_, nb::handle bias_)
      : weight(weight_, op, "weight", kCodes),
        w_scale(w_scale_, op, "w_scale", "float32"),
        bias(bias_, op, "bias", "int32") {}
};

template <class Layer>
void run_layer(const Layer& layer, const char* op, nb::handle x, nb::handle out, std::uintptr_t stream) {
  const ArrayArgument x_array(x, op, "x", kCodes), out_array(out, op, "out", kCodes);
  nb::gil_scoped_release release;
  layer.run(x_array.view(), out_array.view(), stream_of(stream));
}

template <class Layer>
Layer moved(const Layer& layer, bool cuda, int index) {
  nb::gil_scoped_release release;
  return layer.to({cuda ? DeviceType::cuda : DeviceType::cpu, index});
}

}  // namespace

void bind_static(nb::module_& m) {
  nb::class_<StaticConv2d>(m, "StaticConv2d")
      .def(
          "__init__",
          [](StaticConv2d* self, nb::handle weight, nb::handle w_scale, nb::handle bias, const ConvParams& params,
             const FormatTuple& x, const FormatTuple& y, int w_zero_point, int lo, int hi) {
            const Parts parts("static.qconv2d", weight, w_scale, bias);
            new (self) StaticConv2d(StaticConv2d::create(parts.weight.view(), parts.w_scale.view(), parts.bias.get(),
                                                         params, options_of(x, y, w_zero_point, lo, hi)));
          },
          "weight"_a, "w_scale"_a, "bias"_a.none(), "params"_a, "x"_a, "y"_a, "w_zero_point"_a, "lo"_a, "hi"_a)
      .def("shape",
           [](const StaticConv2d& layer, nb::handle x) {
             const ArrayArgument x_array(x, "static.qconv2d", "x", kCodes);
             std::int64_t shape[4];
             layer.shape(x_array.view(), shape);
             return nb::make_tuple(shape[0], shape[1], shape[2], shape[3]);
           })
      .def("run", [](const StaticConv2d& layer, nb::handle x, nb::handle out,
                     std::uintptr_t stream) { run_layer(layer, "static.qconv2d", x, out, stream); })
      .def("to", &moved<StaticConv2d>)
      .def_prop_ro("device", [](const StaticConv2d& layer) { return name(layer.device()); });

  nb::class_<StaticLinear>(m, "StaticLinear")
      .def(
          "__init__",
          [](StaticLinear* self, nb::handle weight, nb::handle w_scale, nb::handle bias, const FormatTuple& x,
             const FormatTuple& y, int w_zero_point, int lo, int hi) {
            const Parts parts("static.qlinear", weight, w_scale, bias);
            new (self) StaticLinear(StaticLinear::create(parts.weight.view(), parts.w_scale.view(), parts.bias.get(),
                                                         options_of(x, y, w_zero_point, lo, hi)));
          },
          "weight"_a, "w_scale"_a, "bias"_a.none(), "x"_a, "y"_a, "w_zero_point"_a, "lo"_a, "hi"_a)
      .def("run", [](const StaticLinear& layer, nb::handle x, nb::handle out,
                     std::uintptr_t stream) { run_layer(layer, "static.qlinear", x, out, stream); })
      .def("to", &moved<StaticLinear>)
      .def_prop_ro("rows", &StaticLinear::rows)
      .def_prop_ro("device", [](const StaticLinear& layer) { return name(layer.device()); });
}

}  // namespace qcore::bindings
