#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>

#include "bind.h"
#include "dlpack_views.h"
#include "qcore/error.h"
#include "qcore/kernels.h"
#include "qcore/probes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {
namespace {

std::uint64_t probe_part(nb::handle buffer, std::int64_t offset, std::int64_t bytes, int streams) {
  const ArrayArgument array(buffer, "probe_read", "buffer", "uint8");
  const TensorView& view = array.view();
  if (view.device != kCpu || !view.is_contiguous())
    throw ValueError("probe_read: buffer is not a contiguous array on the CPU");
  const std::int64_t size = view.size() * item_size(view.dtype);
  if (offset < 0 || bytes < 0 || offset > size - bytes)
    throw ValueError("probe_read: bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes) +
                     " are asked of a buffer of " + std::to_string(size));
  nb::gil_scoped_release release;
  return probe_read(static_cast<const char*>(view.data) + offset, bytes, streams);
}

// Scopes of a thread do not nest: the workers of a checkpoint enter one for each piece of their work.
class CancelToken {
 public:
  void cancel() { cancelled_.store(true); }
  void enter() { current() = this; }
  void leave(nb::handle, nb::handle, nb::handle) { current() = nullptr; }

  static bool is_cancelled() { return current() && current()->cancelled_.load(); }

 private:
  static CancelToken*& current() {
    thread_local CancelToken* token = nullptr;
    return token;
  }
  std::atomic<bool> cancelled_{false};
};

}  // namespace

void check_interrupt() {
  if (CancelToken::is_cancelled()) throw Error("interrupted: its caller has ended");
  nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Python does it on its main thread only
}

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
  m.def(
      "use_openmp_threads",
      [](std::uintptr_t parallel, std::uintptr_t thread_number, std::uintptr_t max_threads) {
        use_openmp_threads(reinterpret_cast<GompParallel>(parallel), reinterpret_cast<OmpGetThreadNum>(thread_number),
                           reinterpret_cast<OmpGetMaxThreads>(max_threads));
      },
      "parallel"_a, "thread_number"_a, "max_threads"_a);
  m.def("available_cpus", &available_cpus);
  nb::class_<CancelToken>(m, "CancelToken", "Ends the searches of the threads that have entered it.")
      .def(nb::init<>())
      .def("cancel", &CancelToken::cancel)
      .def("__enter__", &CancelToken::enter)
      .def("__exit__", &CancelToken::leave, nb::arg("kind").none(), nb::arg("error").none(), nb::arg("trace").none());
  m.def("uses_openmp_threads", &uses_openmp_threads);
  m.def("cuda_info", [] {
    const CudaInfo info = cuda_info();
    nb::dict result;
    result["built"] = info.built;
    result["device_count"] = info.device_count;
    result["reason"] = info.reason;
    result["devices"] = nb::cast(info.devices);
    return result;
  });

  // For qcore.bench.
  m.def("probe_read", &probe_part, "buffer"_a, "offset"_a, "bytes"_a, "streams"_a);
  m.def("probe_int8_dots", &probe_int8_dots, "rounds"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("probe_float_fmas", &probe_float_fmas, "rounds"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace qcore::bindings
