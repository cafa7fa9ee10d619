#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "bind.h"
#include "dlpack_views.h"
#include "qcore/conv2d.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {
namespace {

using Pair = std::array<std::int64_t, 2>;
using Sides = std::array<std::int64_t, 4>;

template <std::size_t kCount>
std::array<std::int64_t, kCount> array_of(const std::int64_t (&values)[kCount]) {
  std::array<std::int64_t, kCount> array;
  std::copy(std::begin(values), std::end(values), array.begin());
  return array;
}

template <auto kMember>
nb::tuple tuple_of(const ConvParams& params) {
  return nb::tuple(nb::cast(array_of(params.*kMember)));
}

bool equal(const ConvParams& a, const ConvParams& b) {
  return array_of(a.stride) == array_of(b.stride) && array_of(a.padding) == array_of(b.padding) &&
         array_of(a.dilation) == array_of(b.dilation) && a.groups == b.groups;
}

// Binds ConvParams as an immutable value: Python compares and hashes it, as a frozen dataclass.
void bind_conv_params(nb::module_& m) {
  nb::class_<ConvParams>(m, "ConvParams")
      .def(
          "__init__",
          [](ConvParams* self, const Pair& stride, const Sides& padding, const Pair& dilation, std::int64_t groups) {
            new (self) ConvParams;
            std::copy(stride.begin(), stride.end(), self->stride);
            std::copy(padding.begin(), padding.end(), self->padding);
            std::copy(dilation.begin(), dilation.end(), self->dilation);
            self->groups = groups;
          },
          "stride"_a, "padding"_a, "dilation"_a, "groups"_a)
      .def_prop_ro("stride", &tuple_of<&ConvParams::stride>)
      .def_prop_ro("padding", &tuple_of<&ConvParams::padding>)
      .def_prop_ro("dilation", &tuple_of<&ConvParams::dilation>)
      .def_ro("groups", &ConvParams::groups)
      .def(
          "__eq__", [](const ConvParams& a, const ConvParams& b) { return equal(a, b); }, nb::is_operator())
      .def("__hash__", [](const ConvParams& params) {
        return nb::hash(nb::make_tuple(tuple_of<&ConvParams::stride>(params), tuple_of<&ConvParams::padding>(params),
                                       tuple_of<&ConvParams::dilation>(params), params.groups));
      });
}

}  // namespace

void bind_conv2d(nb::module_& m) {
  bind_conv_params(m);
  m.def(
      "conv2d_shape",
      [](nb::handle x, const QuantizedTensor& weight, const ConvParams& params) {
        const ArrayArgument x_array(x, "conv2d", "x");
        std::int64_t shape[4];
        conv2d_shape(x_array.view(), weight, params, shape);
        return nb::make_tuple(shape[0], shape[1], shape[2], shape[3]);
      },
      "x"_a, "weight"_a, "params"_a);
  m.def(
      "conv2d",
      [](nb::handle x, const QuantizedTensor& weight, nb::handle bias, nb::handle out, const ConvParams& params,
         ComputeMode compute, ActivationKind activation, float lo, float hi, std::uintptr_t stream) {
        const ArrayArgument x_array(x, "conv2d", "x"), out_array(out, "conv2d", "out");
        const OptionalArray bias_array(bias, "conv2d", "bias");
        Conv2dOptions options;
        options.window = params;
        options.compute = compute;
        options.activation = {activation, lo, hi};
        options.stream = stream_of(stream);
        nb::gil_scoped_release release;
        conv2d(x_array.view(), weight, bias_array.get(), out_array.view(), options);
      },
      "x"_a, "weight"_a, "bias"_a.none(), "out"_a, "params"_a, "compute"_a, "activation"_a, "lo"_a, "hi"_a, "stream"_a);
}

}  // namespace qcore::bindings
