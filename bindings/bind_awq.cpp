#include <nanobind/nanobind.h>

#include "bind.h"
#include "dlpack_views.h"
#include "qcore/awq.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {
namespace {

// The three arrays of a weight and what is made of them.
class AwqArguments {
 public:
  AwqArguments(nb::handle qweight, nb::handle scales, nb::handle qzeros, const char* op)
      : op_(op),
        qweight_(qweight, op, "qweight", "int32"),
        scales_(scales, op, "scales", "float16"),
        qzeros_(qzeros, op, "qzeros", "int32") {}
  AwqDescriptor descriptor() const {
    return AwqDescriptor::create(qweight_.view(), scales_.view(), qzeros_.view(), op_);
  }

 private:
  const char* op_;
  ArrayArgument qweight_, scales_, qzeros_;
};

}  // namespace

void bind_awq(nb::module_& m) {
  m.def("awq_dequantize", [](nb::handle qweight, nb::handle scales, nb::handle qzeros, bool transpose, nb::handle out,
                             std::uintptr_t stream) {
    const AwqArguments weight(qweight, scales, qzeros, "awq.dequantize");
    const ArrayArgument out_array(out, "awq.dequantize", "out", "float16");
    nb::gil_scoped_release release;
    weight.descriptor().dequantize(out_array.view(), transpose, stream_of(stream));
  });
  m.def(
      "awq_linear",
      [](nb::handle x, nb::handle qweight, nb::handle scales, nb::handle qzeros, nb::handle bias, nb::handle out,
         std::uintptr_t stream) {
        const AwqArguments weight(qweight, scales, qzeros, "awq.linear");
        const ArrayArgument x_array(x, "awq.linear", "x"), out_array(out, "awq.linear", "out");
        const OptionalArray bias_array(bias, "awq.linear", "bias");
        nb::gil_scoped_release release;
        weight.descriptor().linear(x_array.view(), bias_array.get(), out_array.view(), stream_of(stream));
      },
      "x"_a, "qweight"_a, "scales"_a, "qzeros"_a, "bias"_a.none(), "out"_a, "stream"_a);
  m.def("awq_pack", [](nb::handle qweight, nb::handle scales, nb::handle qzeros, std::uintptr_t stream) {
    const AwqArguments weight(qweight, scales, qzeros, "awq.Weight");
    nb::gil_scoped_release release;
    return weight.descriptor().pack(stream_of(stream));
  });
}

}  // namespace qcore::bindings
