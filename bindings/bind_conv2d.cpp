#include <nanobind/nanobind.h>

#include "bind.h"
#include "dlpack_views.h"
#include "qcore/conv2d.h"
#include "windows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {

void bind_conv2d(nb::module_& m) {
  m.def(
      "conv2d_shape",
      [](nb::handle x, const QuantizedTensor& weight, const WindowTuple& window) {
        const ArrayArgument x_array(x, "conv2d", "x");
        std::int64_t shape[4];
        conv2d_shape(x_array.view(), weight, window_of(window), shape);
        return nb::make_tuple(shape[0], shape[1], shape[2], shape[3]);
      },
      "x"_a, "weight"_a, "window"_a);
  m.def(
      "conv2d",
      [](nb::handle x, const QuantizedTensor& weight, nb::handle bias, nb::handle out, const WindowTuple& window,
         int compute, int activation, float lo, float hi, std::uintptr_t stream) {
        const ArrayArgument x_array(x, "conv2d", "x"), out_array(out, "conv2d", "out");
        const OptionalArray bias_array(bias, "conv2d", "bias");
        Conv2dOptions options;
        options.window = window_of(window);
        options.compute = static_cast<Compute>(compute);
        options.activation = {static_cast<ActivationKind>(activation), lo, hi};
        options.stream = reinterpret_cast<void*>(stream);
        nb::gil_scoped_release release;
        conv2d(x_array.view(), weight, bias_array.get(), out_array.view(), options);
      },
      "x"_a, "weight"_a, "bias"_a.none(), "out"_a, "window"_a, "compute"_a, "activation"_a, "lo"_a, "hi"_a, "stream"_a);
}

}  // namespace qcore::bindings
