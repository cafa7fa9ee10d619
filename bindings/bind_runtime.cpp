#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bind.h"
#include "qcore/kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {

void bind_runtime(nb::module_& m) {
  nb::class_<KernelInfo>(m, "KernelInfo", "One row of the kernel table.")
      .def_ro("op", &KernelInfo::op, "Operator, e.g. 'linear'.")
      .def_ro("name", &KernelInfo::name, "Name to give to force_kernel().")
      .def_ro("device", &KernelInfo::device, "'cpu' or 'cuda'.")
      .def_ro("available", &KernelInfo::available, "Whether this build has it and this machine can run it.")
      .def_ro("needs", &KernelInfo::needs, "What a machine must have to run it.")
      .def_ro("runs", &KernelInfo::runs, "Calls that ran it in this process.")
      .def("__repr__", [](const KernelInfo& info) {
        return "KernelInfo(op='" + info.op + "', name='" + info.name + "', device='" + info.device +
               "', available=" + (info.available ? "True" : "False") + ", runs=" + std::to_string(info.runs) + ")";
      });
  m.def("kernels", &kernels, "op"_a);
  m.def("last_kernel", &last_kernel, "op"_a);

  nb::class_<ForceKernel>(m, "ForceKernel").def(nb::init<const std::string&, const std::string&>(), "op"_a, "name"_a);

  m.def("cpu_features", &cpu_features);
  m.def("get_num_threads", &get_num_threads);
  m.def("set_num_threads", &set_num_threads, "n"_a);
  m.def("cuda_info", [] {
    const CudaInfo info = cuda_info();
    nb::dict result;
    result["built"] = info.built;
    result["device_count"] = info.device_count;
    result["reason"] = info.reason;
    result["devices"] = nb::cast(info.devices);
    return result;
  });
}

}  // namespace qcore::bindings
