#include <nanobind/nanobind.h>

#include "bind.h"
#include "dlpack_views.h"
#include "qcore/error.h"
#include "qcore/version.h"

namespace nb = nanobind;

namespace {

// Each exception is a QcoreError and also the builtin that Python users expect.
nb::object make_exception(nb::module_& m, const char* name, nb::object base, PyObject* builtin, const char* doc) {
  nb::object bases = builtin ? nb::object(nb::make_tuple(base, nb::borrow(builtin))) : base;
  const std::string qualified = std::string("qcore.") + name;
  nb::object type = nb::steal(PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), nullptr));
  if (!type.is_valid()) nb::raise_python_error();
  m.attr(name) = type;
  return type;
}

struct ExceptionTypes {
  PyObject *base, *value, *type, *cuda;
};

}  // namespace

NB_MODULE(_core, m) {
  // At exit torch and pytest keep modules alive that hold our objects, and nanobind would report them as leaks of ours.
  // tests/python/runtime/test_runtime.py turns the report on in a process without them.
  nb::set_leak_warnings(false);
  m.def("set_leak_warnings", [](bool enabled) { nb::set_leak_warnings(enabled); });
  m.attr("__version__") = QCORE_VERSION;

  static ExceptionTypes types;  // for the life of the process, like the module
  const nb::object base =
      make_exception(m, "QcoreError", nb::borrow(PyExc_Exception), nullptr, "Base of every error that qcore raises.");
  types.base = base.ptr();
  types.value = make_exception(m, "QcoreValueError", base, PyExc_ValueError,
                               "An argument has an impossible value, shape or device.")
                    .release()
                    .ptr();
  types.type = make_exception(m, "QcoreTypeError", base, PyExc_TypeError,
                              "An argument has a dtype or a kind that the operator does not take.")
                   .release()
                   .ptr();
  types.cuda = make_exception(m, "CudaError", base, PyExc_RuntimeError,
                              "A CUDA call failed, or CUDA was asked for where there is none.")
                   .release()
                   .ptr();
  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void* payload) {
        const auto& known = *static_cast<const ExceptionTypes*>(payload);
        try {
          std::rethrow_exception(pointer);
        } catch (const qcore::ValueError& error) {
          PyErr_SetString(known.value, error.what());
        } catch (const qcore::TypeError& error) {
          PyErr_SetString(known.type, error.what());
        } catch (const qcore::CudaError& error) {
          PyErr_SetString(known.cuda, error.what());
        } catch (const qcore::Error& error) {
          PyErr_SetString(known.base, error.what());
        }
      },
      &types);

  qcore::bindings::bind_enums(m);
  qcore::bindings::bind_arrays(m);
  qcore::bindings::bind_runtime(m);
  qcore::bindings::bind_quantize(m);
  qcore::bindings::bind_linear(m);
  qcore::bindings::bind_awq(m);
  qcore::bindings::bind_conv2d(m);
  qcore::bindings::bind_decoder(m);
  qcore::bindings::bind_gru(m);
  qcore::bindings::bind_lstm(m);
  qcore::bindings::bind_lut(m);
  qcore::bindings::bind_lut_fit(m);
  qcore::bindings::bind_static(m);
}
