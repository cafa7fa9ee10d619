#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bind.h"
#include "dlpack_views.h"
#include "qcore/error.h"
#include "qcore/kernels.h"
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

// A shape of 2 or 4 extents.
int read_shape(const std::vector<std::int64_t>& given, const char* op, std::int64_t (&shape)[4]) {
  if (given.size() != 2 && given.size() != 4)
    throw ValueError(std::string(op) + ": shape has " + std::to_string(given.size()) +
                     " dimensions, expected [N, K] or [Co, Ci, Kh, Kw]");
  std::copy(given.begin(), given.end(), shape);
  return static_cast<int>(given.size());
}

// All of the weight's memory, kept alive by the weight.
nb::object storage_of(nb::handle weight) {
  const TensorView view = nb::cast<const QuantizedTensor&>(weight).storage();
  const std::size_t extent = static_cast<std::size_t>(view.shape[0]);
  const bool cuda = view.device.type == DeviceType::cuda;
  return nb::cast(nb::ndarray<nb::array_api, std::uint8_t>(
      view.data, 1, &extent, weight, nullptr, nb::dtype<std::uint8_t>(),
      cuda ? nb::device::cuda::value : nb::device::cpu::value, view.device.index));
}

// Keeps a Python object alive from C++ threads that don't hold the GIL.
std::shared_ptr<const void> owner_of(nb::handle object) {
  object.inc_ref();
  return std::shared_ptr<const void>(object.ptr(), [](const void* pointer) {
    if (!nb::is_alive()) return;  // the interpreter has gone
    nb::gil_scoped_acquire acquire;
    nb::handle(static_cast<PyObject*>(const_cast<void*>(pointer))).dec_ref();
  });
}

QuantizedTensor from_storage(nb::handle storage, const std::vector<std::int64_t>& shape, int bits,
                             std::int64_t block_size, bool symmetric, bool half_scales, bool half_offsets, bool keep,
                             const WeightEncoding* encoding) {
  const ArrayArgument array(storage, "from_storage", "storage", "uint8");
  StorageFormat format;
  format.rank = read_shape(shape, "from_storage", format.shape);
  format.bits = bits;
  format.block_size = block_size;
  format.scheme = symmetric ? Scheme::symmetric : Scheme::asymmetric;
  format.scale_dtype = half_scales ? DType::f16 : DType::f32;
  format.offset_dtype = half_offsets ? DType::f16 : DType::f32;
  format.encoding = encoding;
  return QuantizedTensor::from_storage(array.view(), keep ? owner_of(storage) : nullptr, format);
}

// The arrays of an encoded weight, given by a caller.
class EncodedArguments {
 public:
  EncodedArguments(const char* op, nb::handle codes, nb::handle scales, nb::handle offsets, nb::handle super_scales,
                   nb::handle super_offsets)
      : codes_(codes, op, "codes", "uint8"),
        scales_(scales, op, "scales"),
        offsets_(offsets, op, "offsets"),
        super_scales_(super_scales, op, "super_scales"),
        super_offsets_(super_offsets, op, "super_offsets") {}

  EncodedParts parts() const {
    return {codes_.view(), scales_.view(), offsets_.get(), super_scales_.get(), super_offsets_.get()};
  }

 private:
  ArrayArgument codes_, scales_;
  OptionalArray offsets_, super_scales_, super_offsets_;
};

void make_encoding(WeightEncoding* self, int bits, int zero, const std::optional<std::vector<std::int8_t>>& codebook,
                   ParameterType scales, ParameterType offsets, int scale_zero, std::int64_t super_block,
                   float tensor_scale) {
  WeightEncoding encoding;
  encoding.bits = bits;
  encoding.zero = zero;
  encoding.has_codebook = codebook.has_value();
  if (codebook) {
    if (codebook->size() != 16)
      throw ValueError("WeightEncoding: codebook has " + std::to_string(codebook->size()) + " values, expected 16");
    std::copy(codebook->begin(), codebook->end(), encoding.codebook);
  }
  encoding.scales = scales;
  encoding.offsets = offsets;
  encoding.scale_zero = scale_zero;
  encoding.super_block = super_block;
  encoding.tensor_scale = tensor_scale;
  new (self) WeightEncoding(encoding);
}

// Binds WeightEncoding as an immutable value.
void bind_encoding(nb::module_& m) {
  nb::class_<WeightEncoding>(m, "WeightEncoding")
      .def("__init__", &make_encoding, "bits"_a, "zero"_a, "codebook"_a.none(), "scales"_a, "offsets"_a, "scale_zero"_a,
           "super_block"_a, "tensor_scale"_a)
      .def("check", &WeightEncoding::check, "where"_a)
      .def_ro("bits", &WeightEncoding::bits)
      .def_ro("zero", &WeightEncoding::zero)
      .def_prop_ro("codebook",
                   [](const WeightEncoding& encoding) -> nb::object {
                     if (!encoding.has_codebook) return nb::none();
                     nb::list values;
                     for (const std::int8_t value : encoding.codebook) values.append(static_cast<int>(value));
                     return nb::tuple(values);
                   })
      .def_ro("scales", &WeightEncoding::scales)
      .def_ro("offsets", &WeightEncoding::offsets)
      .def_ro("scale_zero", &WeightEncoding::scale_zero)
      .def_ro("super_block", &WeightEncoding::super_block)
      .def_ro("tensor_scale", &WeightEncoding::tensor_scale);
}

}  // namespace

void bind_quantize(nb::module_& m) {
  bind_encoding(m);
  nb::class_<QuantizedTensor>(m, "QuantizedTensor")
      .def_prop_ro("shape", &shape_of)
      .def_prop_ro("rows", &QuantizedTensor::rows)
      .def_prop_ro("blocks", &QuantizedTensor::blocks)
      .def_prop_ro("bits", &QuantizedTensor::bits)
      .def_prop_ro("block_size", &QuantizedTensor::block_size)
      .def_prop_ro("symmetric", [](const QuantizedTensor& w) { return w.scheme() == Scheme::symmetric; })
      .def_prop_ro("device", [](const QuantizedTensor& w) { return name(w.device()); })
      .def_prop_ro("scale_dtype", [](const QuantizedTensor& w) { return name(w.scale_dtype()); })
      .def_prop_ro("offset_dtype", [](const QuantizedTensor& w) { return name(w.offset_dtype()); })
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
      .def_prop_ro("encoding",
                   [](const QuantizedTensor& w) -> std::optional<WeightEncoding> {
                     if (!w.encoding()) return std::nullopt;
                     return *w.encoding();
                   })
      .def(
          "encoded_parts",
          [](const QuantizedTensor& w, nb::handle codes, nb::handle scales, nb::handle offsets, nb::handle super_scales,
             nb::handle super_offsets) {
            const EncodedArguments out("encoded_parts", codes, scales, offsets, super_scales, super_offsets);
            nb::gil_scoped_release release;
            w.encoded_parts(out.parts());
          },
          "codes"_a, "scales"_a, "offsets"_a.none(), "super_scales"_a.none(), "super_offsets"_a.none())
      .def("plain",
           [](const QuantizedTensor& w) {
             nb::gil_scoped_release release;
             return w.plain();
           })
      .def("storage", [](nb::handle self) { return storage_of(self); })
      .def("slice_rows",
           [](const QuantizedTensor& w, std::int64_t begin, std::int64_t end) {
             nb::gil_scoped_release release;
             return w.slice_rows(begin, end);
           })
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
      [](nb::handle weight, int bits, std::int64_t block_size, bool symmetric, Method method, bool half_scales,
         nb::handle importance) {
        const ArrayArgument array(weight, "quantize", "weight");
        const OptionalArray importance_array(importance, "quantize", "importance", "float32");
        const QuantizeOptions options{bits,
                                      block_size,
                                      symmetric ? Scheme::symmetric : Scheme::asymmetric,
                                      method,
                                      half_scales ? DType::f16 : DType::f32,
                                      importance_array.get()};
        nb::gil_scoped_release release;
        const InterruptCheck check(&check_interrupt);
        return QuantizedTensor::quantize(array.view(), options);
      },
      "weight"_a, "bits"_a, "block_size"_a, "symmetric"_a, "method"_a, "half_scales"_a, "importance"_a.none());

  m.def(
      "quantize_encoded",
      [](nb::handle weight, const WeightEncoding& encoding, std::int64_t block_size, Method method,
         nb::handle importance) {
        const ArrayArgument array(weight, "quantize_encoded", "weight");
        const OptionalArray importance_array(importance, "quantize_encoded", "importance", "float32");
        nb::gil_scoped_release release;
        const InterruptCheck check(&check_interrupt);
        return QuantizedTensor::quantize_encoded(array.view(), encoding, block_size, method, importance_array.get());
      },
      "weight"_a, "encoding"_a, "block_size"_a, "method"_a, "importance"_a.none());

  m.def(
      "gptq_columns",
      [](nb::handle weights, nb::handle factor, nb::handle scales, nb::handle offsets, nb::handle blocks,
         nb::handle codes, int bits) {
        const ArrayArgument weights_array(weights, "gptq_columns", "weights", "float32");
        const ArrayArgument factor_array(factor, "gptq_columns", "factor", "float32");
        const ArrayArgument scales_array(scales, "gptq_columns", "scales", "float32");
        const OptionalArray offsets_array(offsets, "gptq_columns", "offsets", "float32");
        const ArrayArgument blocks_array(blocks, "gptq_columns", "blocks", "int64");
        const ArrayArgument codes_array(codes, "gptq_columns", "codes", "int8");
        nb::gil_scoped_release release;
        const InterruptCheck check(&check_interrupt);
        gptq_columns({weights_array.view(), factor_array.view(), scales_array.view(), offsets_array.get(),
                      blocks_array.view(), codes_array.view(), bits});
      },
      "weights"_a, "factor"_a, "scales"_a, "offsets"_a.none(), "blocks"_a, "codes"_a, "bits"_a);

  m.def(
      "from_parts",
      [](nb::handle codes, nb::handle scales, nb::handle offsets, int bits, std::int64_t block_size) {
        const ArrayArgument codes_array(codes, "from_parts", "codes", "int8");
        const ArrayArgument scales_array(scales, "from_parts", "scales");
        const OptionalArray offsets_array(offsets, "from_parts", "offsets");
        nb::gil_scoped_release release;
        return QuantizedTensor::from_parts(codes_array.view(), scales_array.view(), offsets_array.get(), bits,
                                           block_size);
      },
      "codes"_a, "scales"_a, "offsets"_a.none(), "bits"_a, "block_size"_a);

  m.def(
      "from_nibbles",
      [](nb::handle nibbles, const std::vector<std::int64_t>& shape, nb::handle scales, nb::handle offsets,
         std::int64_t block_size) {
        const ArrayArgument nibbles_array(nibbles, "from_parts", "codes", "uint8");
        const ArrayArgument scales_array(scales, "from_parts", "scales");
        const OptionalArray offsets_array(offsets, "from_parts", "offsets");
        std::int64_t extents[4];
        const int rank = read_shape(shape, "from_parts", extents);
        nb::gil_scoped_release release;
        return QuantizedTensor::from_nibbles(nibbles_array.view(), rank, extents, scales_array.view(),
                                             offsets_array.get(), block_size);
      },
      "nibbles"_a, "shape"_a, "scales"_a, "offsets"_a.none(), "block_size"_a);

  m.def("from_storage", &from_storage, "storage"_a, "shape"_a, "bits"_a, "block_size"_a, "symmetric"_a, "half_scales"_a,
        "half_offsets"_a, "keep"_a, "encoding"_a.none() = nb::none());

  m.def(
      "from_encoded",
      [](const WeightEncoding& encoding, nb::handle codes, nb::handle scales, nb::handle offsets,
         nb::handle super_scales, nb::handle super_offsets, std::int64_t block_size) {
        const EncodedArguments given("from_encoded", codes, scales, offsets, super_scales, super_offsets);
        nb::gil_scoped_release release;
        return QuantizedTensor::from_encoded(encoding, given.parts(), block_size);
      },
      "encoding"_a, "codes"_a, "scales"_a, "offsets"_a.none(), "super_scales"_a.none(), "super_offsets"_a.none(),
      "block_size"_a);

  m.def("concatenate", [](const std::vector<QuantizedTensor>& weights) {
    nb::gil_scoped_release release;
    return QuantizedTensor::concatenate(weights.data(), static_cast<std::int64_t>(weights.size()));
  });

  m.def("check_quantized_activations", [](const nb::tuple& parts, const char* op, const char* argument) {
    QuantizedArgument(parts, op, argument).get().check(op, argument);
  });
  m.def("quantize_activations", [](nb::handle x, const nb::tuple& y, float scale, std::uintptr_t stream) {
    const char* op = "quantize_activations";
    const ArrayArgument x_array(x, op, "x");
    const QuantizedArgument y_arrays(y, op, "y");
    const QuantizeActivationsOptions options{scale, stream_of(stream)};
    nb::gil_scoped_release release;
    quantize_activations(x_array.view(), y_arrays.get(), options);
  });
}

}  // namespace qcore::bindings
