#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <string>

#include "qcore/quantized_activations.h"
#include "qcore/tensor_view.h"

namespace qcore::bindings {

namespace nb = nanobind;

// A CUDA stream as Python passes it, by its address.
inline void* stream_of(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

constexpr const char* kFloatingDtypes = "float32, float16 or bfloat16";

// An array argument for the length of a call: a TensorView, and what keeps its memory alive. The only place where
// Python objects become arrays. In order of speed:
//   the producer type's C exchange table (torch), the buffer protocol (numpy), __dlpack__ (all others).
class ArrayArgument {
 public:
  // Throws TypeError or ValueError in the name of `op` and `argument`; `expected` names the dtypes that the operator
  // takes there, for the error of a dtype that no operator takes.
  ArrayArgument(nb::handle object, const char* op, const char* argument, const char* expected = kFloatingDtypes);
  ~ArrayArgument();
  ArrayArgument(const ArrayArgument&) = delete;
  ArrayArgument& operator=(const ArrayArgument&) = delete;

  const TensorView& view() const { return view_; }

 private:
  // Describes the operator and argument that an array is for, and which dtypes it takes.
  struct Asked {
    const char *op, *argument, *expected;
  };
  bool from_exchange_table(nb::handle object, const Asked& asked);
  bool from_buffer(nb::handle object, const Asked& asked);
  void from_dlpack(nb::handle object, const Asked& asked);

  TensorView view_;
  Py_buffer buffer_{};
  std::optional<nb::ndarray<nb::ro>> array_;
};

// Holds an optional argument in the same way: None gives no view.
class OptionalArray {
 public:
  OptionalArray(nb::handle object, const char* op, const char* argument, const char* expected = kFloatingDtypes) {
    if (!object.is_none()) array_.emplace(object, op, argument, expected);
  }
  const TensorView* get() const { return array_ ? &array_->view() : nullptr; }

 private:
  std::optional<ArrayArgument> array_;
};

// Holds a tuple (codes, scales, offsets or None, block size, mode) in the same way.
class QuantizedArgument {
 public:
  QuantizedArgument(const nb::tuple& parts, const char* op, const std::string& argument)
      : codes_(parts[0], op, (argument + ".codes").c_str(), "int8 or int16"),
        scales_(parts[1], op, (argument + ".scales").c_str(), "float32"),
        offsets_(parts[2], op, (argument + ".offsets").c_str(), "float32"),
        value_{codes_.view(), scales_.view(), offsets_.get() ? *offsets_.get() : TensorView(),
               nb::cast<std::int64_t>(parts[3]), nb::cast<ComputeMode>(parts[4])} {}

  const QuantizedActivations& get() const { return value_; }

 private:
  ArrayArgument codes_, scales_;
  OptionalArray offsets_;
  QuantizedActivations value_;
};

void bind_arrays(nb::module_& m);

}  // namespace qcore::bindings
