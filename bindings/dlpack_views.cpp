#include "dlpack_views.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "qcore/error.h"

namespace qcore::bindings {
namespace {

// The part of DLPack's DLPackExchangeAPI (dlpack.h, version 1) that is used here.
struct ExchangeTable {
  std::uint32_t major, minor;
  void* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  int (*dltensor_from_py_object)(void* object, nb::dlpack::dltensor* out);
  void* current_work_stream;
};

const ExchangeTable* read_exchange_table(PyTypeObject* type) {
  nb::object capsule =
      nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
  const void* pointer = nullptr;
  if (capsule.is_valid() && PyCapsule_CheckExact(capsule.ptr()))
    pointer = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
  PyErr_Clear();
  const auto* table = static_cast<const ExchangeTable*>(pointer);
  return table && table->major == 1 && table->dltensor_from_py_object ? table : nullptr;
}

// Looked up once for each type; the reference keeps a type's address from being used again.
const ExchangeTable* exchange_table(PyTypeObject* type) {
  struct Known {
    PyTypeObject* type;
    const ExchangeTable* table;
  };
  static std::vector<Known> known;  // guarded by the GIL
  for (const Known& entry : known)
    if (entry.type == type) return entry.table;
  const ExchangeTable* table = read_exchange_table(type);
  constexpr std::size_t kMaxTypes = 64;  // a program that makes types without end must not keep them all
  if (known.size() < kMaxTypes) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    known.push_back({type, table});
  }
  return table;
}

std::string kind_of(nb::handle object) { return nb::type_name(object.type()).c_str(); }

std::string prefix(const char* op, const char* argument) { return std::string(op) + ": " + argument; }

[[noreturn]] void throw_dtype(nb::handle object, const std::string& fallback, const char* op, const char* argument,
                              const char* expected) {
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  const std::string text = dtype.is_none() ? fallback : nb::str(dtype).c_str();
  throw TypeError(prefix(op, argument) + " has dtype " + text + ", expected " + expected);
}

// A producer's own reason for not exporting its array: the first line, since torch appends a C++ stack.
[[noreturn]] void throw_refusal(nb::handle object, const nb::python_error& error, const char* op,
                                const char* argument) {
  if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw error;
  const std::string reason = nb::str(error.value()).c_str();
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  const std::string described = dtype.is_none() ? "" : std::string(" of dtype ") + nb::str(dtype).c_str();
  throw TypeError(
      prefix(op, argument) + " is a " + kind_of(object) + described +
      " that does not export its memory, expected an array that does: " + reason.substr(0, reason.find('\n')));
}

DType dtype_of(nb::dlpack::dtype dtype, nb::handle object, const char* op, const char* argument, const char* expected) {
  using Code = nb::dlpack::dtype_code;
  const auto is = [&](Code code, int bits) {
    return dtype.lanes == 1 && dtype.code == static_cast<std::uint8_t>(code) && dtype.bits == bits;
  };
  if (is(Code::Float, 32)) return DType::f32;
  if (is(Code::Float, 16)) return DType::f16;
  if (is(Code::Bfloat, 16)) return DType::bf16;
  if (is(Code::Int, 8)) return DType::i8;
  if (is(Code::UInt, 8)) return DType::u8;
  if (is(Code::Int, 16)) return DType::i16;
  if (is(Code::Int, 32)) return DType::i32;
  if (is(Code::Int, 64)) return DType::i64;
  throw_dtype(object, "of DLPack code " + std::to_string(dtype.code) + " with " + std::to_string(dtype.bits) + " bits",
              op, argument, expected);
}

nb::dlpack::dtype dlpack_dtype(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto make = [](Code code, int bits) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
  };
  switch (dtype) {
    case DType::f32:
      return make(Code::Float, 32);
    case DType::f16:
      return make(Code::Float, 16);
    case DType::bf16:
      return make(Code::Bfloat, 16);
    case DType::i8:
      return make(Code::Int, 8);
    case DType::u8:
      return make(Code::UInt, 8);
    case DType::i16:
      return make(Code::Int, 16);
    case DType::i64:
      return make(Code::Int, 64);
    case DType::i32:
      break;
  }
  return make(Code::Int, 32);
}

Device device_of(int type, int index, const char* op, const char* argument) {
  constexpr int kCpuType = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13;
  if (type == kCpuType || type == kCudaHost) return kCpu;
  if (type == kCuda || type == kCudaManaged) return {DeviceType::cuda, index};
  throw ValueError(prefix(op, argument) + " is on a device of DLPack type " + std::to_string(type) +
                   ", expected the CPU or a CUDA device");
}

void check_rank(int rank, const char* op, const char* argument) {
  if (rank > TensorView::kMaxRank)
    throw ValueError(prefix(op, argument) + " has rank " + std::to_string(rank) + ", expected at most " +
                     std::to_string(TensorView::kMaxRank));
}

void check_alignment(const TensorView& view, const char* op, const char* argument) {
  if (view.size() && reinterpret_cast<std::uintptr_t>(view.data) % item_size(view.dtype))
    throw ValueError(prefix(op, argument) + " is not aligned to its element size, expected " +
                     std::to_string(item_size(view.dtype)) + "-byte alignment: copy it first");
}

}  // namespace

ArrayArgument::ArrayArgument(nb::handle object, const char* op, const char* argument, const char* expected) {
  const Asked asked{op, argument, expected};
  if (!from_exchange_table(object, asked) && !from_buffer(object, asked)) from_dlpack(object, asked);
  try {
    check_alignment(view_, op, argument);
  } catch (...) {
    PyBuffer_Release(&buffer_);
    throw;
  }
}

ArrayArgument::~ArrayArgument() { PyBuffer_Release(&buffer_); }

bool ArrayArgument::from_exchange_table(nb::handle object, const Asked& asked) {
  const auto [op, argument, expected] = asked;
  const ExchangeTable* table = exchange_table(Py_TYPE(object.ptr()));
  if (!table) return false;
  nb::dlpack::dltensor tensor;
  if (table->dltensor_from_py_object(object.ptr(), &tensor) != 0)
    throw_refusal(object, nb::python_error(), op, argument);
  check_rank(tensor.ndim, op, argument);
  view_.dtype = dtype_of(tensor.dtype, object, op, argument, expected);
  view_.device = device_of(tensor.device.device_type, tensor.device.device_id, op, argument);
  view_.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  view_.rank = tensor.ndim;
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    view_.shape[axis] = tensor.shape[axis];
    view_.strides[axis] = tensor.strides[axis];
  }
  return true;
}

bool ArrayArgument::from_buffer(nb::handle object, const Asked& asked) {
  const auto [op, argument, expected] = asked;
  // bytes and memoryviews are buffers too, but no arrays.
  if (!PyObject_CheckBuffer(object.ptr()) || PyBytes_Check(object.ptr()) || PyByteArray_Check(object.ptr()) ||
      PyMemoryView_Check(object.ptr()))
    return false;
  if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  try {
    check_rank(buffer_.ndim, op, argument);
    const char* format = buffer_.format ? buffer_.format : "B";  // bytes, if it says nothing
    if (*format == '@' || *format == '=' || *format == '<') ++format;
    static constexpr struct {
      char format;
      DType dtype;
    } kFormats[] = {{'f', DType::f32}, {'e', DType::f16}, {'b', DType::i8},  {'B', DType::u8}, {'h', DType::i16},
                    {'i', DType::i32}, {'l', DType::i64}, {'l', DType::i32}, {'q', DType::i64}};
    // An 'l' has 4 or 8 bytes, by the system and by what is in front of it.
    const auto* match = kFormats;
    while (match != std::end(kFormats) && !(format[0] == match->format && format[1] == 0 &&
                                            buffer_.itemsize == static_cast<Py_ssize_t>(item_size(match->dtype))))
      ++match;
    if (match == std::end(kFormats))
      throw_dtype(object,
                  std::string("of buffer format ") + (buffer_.format ? buffer_.format : "none") + " with " +
                      std::to_string(buffer_.itemsize) + " bytes per element",
                  op, argument, expected);
    view_.dtype = match->dtype;
    view_.data = buffer_.buf;
    view_.read_only = buffer_.readonly;
    view_.rank = buffer_.ndim;
    for (int axis = 0; axis < buffer_.ndim; ++axis) {
      view_.shape[axis] = buffer_.shape[axis];
      if (view_.shape[axis] > 1 && buffer_.strides[axis] % buffer_.itemsize)
        throw ValueError(prefix(op, argument) + " has a stride of " + std::to_string(buffer_.strides[axis]) +
                         " bytes, expected a multiple of its element size " + std::to_string(buffer_.itemsize) +
                         ": copy it first");
      view_.strides[axis] = buffer_.strides[axis] / buffer_.itemsize;
    }
  } catch (...) {
    PyBuffer_Release(&buffer_);
    throw;
  }
  return true;
}

void ArrayArgument::from_dlpack(nb::handle object, const Asked& asked) {
  const auto [op, argument, expected] = asked;
  if (!nb::hasattr(object, "__dlpack__"))
    throw TypeError(prefix(op, argument) + " is a " + kind_of(object) +
                    ", expected an array with __dlpack__ (numpy, torch, jax, cupy, ...)");
  nb::ndarray<> writable;
  nb::ndarray<nb::ro> array;
  bool read_only = false;
  if (nb::try_cast<nb::ndarray<>>(object, writable, false)) {
    array = nb::ndarray<nb::ro>(writable);
  } else if (nb::try_cast<nb::ndarray<nb::ro>>(object, array, false)) {
    read_only = true;
  } else {
    // Ask the producer itself, so that its own reason reaches the user.
    try {
      object.attr("__dlpack__")();
    } catch (const nb::python_error& error) {
      throw_refusal(object, error, op, argument);
    }
    throw TypeError(prefix(op, argument) + " is a " + kind_of(object) +
                    " whose __dlpack__ result can't be used, expected a DLPack capsule that nobody has consumed");
  }
  check_rank(static_cast<int>(array.ndim()), op, argument);
  view_.dtype = dtype_of(array.dtype(), object, op, argument, expected);
  view_.device = device_of(array.device_type(), array.device_id(), op, argument);
  view_.data = const_cast<void*>(array.data());
  view_.read_only = read_only;
  view_.rank = static_cast<int>(array.ndim());
  for (int axis = 0; axis < view_.rank; ++axis) {
    view_.shape[axis] = static_cast<std::int64_t>(array.shape(axis));
    view_.strides[axis] = array.stride(axis);
  }
  array_.emplace(std::move(array));
}

namespace {

// Memory of our own for frameworks whose arrays can't be written to once they exist (jax).
nb::ndarray<nb::array_api> empty_array(const std::vector<std::int64_t>& shape, DType dtype) {
  std::vector<std::size_t> extents(shape.begin(), shape.end());
  std::int64_t bytes = item_size(dtype);
  for (std::int64_t extent : shape) bytes *= extent;
  constexpr std::size_t kLine = 64;
  // Not std::aligned_alloc(), which Windows lacks.
  void* memory = ::operator new(static_cast<std::size_t>(bytes), std::align_val_t{kLine});
  nb::capsule owner(memory, [](void* p) noexcept { ::operator delete(p, std::align_val_t{kLine}); });
  return nb::ndarray<nb::array_api>(memory, extents.size(), extents.data(), owner, nullptr, dlpack_dtype(dtype));
}

// Bytes to skip in a buffer so that what follows starts a cache line.
std::size_t line_offset(nb::handle object) {
  const ArrayArgument array(object, "line_offset", "buffer", "uint8");
  return (64 - reinterpret_cast<std::uintptr_t>(array.view().data) % 64) % 64;
}

// The same memory with the dtype bfloat16, which NumPy's own exports cannot name. Read-only stays read-only.
nb::object as_bfloat16(nb::handle words, const char* op, const char* argument) {
  const ArrayArgument array(words, op, argument);
  const TensorView& view = array.view();
  if (view.dtype != DType::i16)
    throw TypeError(prefix(op, argument) + " has dtype " + name(view.dtype) + ", expected the words of bfloat16");
  std::vector<std::size_t> extents(view.shape, view.shape + view.rank);
  const auto dtype = dlpack_dtype(DType::bf16);
  const auto count = static_cast<std::size_t>(view.rank);
  if (view.read_only)
    return nb::cast(nb::ndarray<nb::array_api, nb::ro>(view.data, count, extents.data(), words, view.strides, dtype));
  return nb::cast(nb::ndarray<nb::array_api>(view.data, count, extents.data(), words, view.strides, dtype));
}

}  // namespace

void bind_arrays(nb::module_& m) {
  m.def("empty_array", &empty_array, nb::arg("shape"), nb::arg("dtype"));
  m.def("line_offset", &line_offset, nb::arg("buffer"));
  m.def("as_bfloat16", &as_bfloat16, nb::arg("words"), nb::arg("op"), nb::arg("argument"));
}

}  // namespace qcore::bindings
