#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "dlpack_views.h"
#include "fixed_arrays.h"
#include "qcore/gru.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {
namespace {

// A row of bits, signedness, exponent and zero point for each tensor, in GruFormats' order.
GruFormats formats_of(const Formats& rows) {
  GruFormats formats;
  FixedFormat* const all[] = {&formats.x,   &formats.h,     &formats.wx,       &formats.rh,      &formats.rb,
                              &formats.rrh, &formats.z_pre, &formats.r_pre,    &formats.g_pre,   &formats.z,
                              &formats.r,   &formats.g,     &formats.old_part, &formats.new_part};
  read_formats("gru", rows, all, sizeof all / sizeof *all);
  return formats;
}

FixedFormat format_of(nb::handle row) {
  const auto [bits, is_signed, exponent, zero] = nb::cast<std::tuple<int, bool, int, std::int32_t>>(row);
  return {bits, is_signed, exponent, zero};
}

// The arrays of a run.
struct Arguments {
  Arguments(nb::handle x_object, nb::handle h0_object, nb::handle y_object, nb::handle last_object,
            nb::handle lengths_object, nb::handle gates_object, std::uintptr_t stream_address)
      : x(x_object, "gru", "x", kCodesOrNumbers),
        y(y_object, "gru", "out", kCodesOrNumbers),
        h0(h0_object, "gru", "h0", kCodesOrNumbers),
        last(last_object, "gru", "last", kCodesOrNumbers),
        lengths(lengths_object, "gru", "lengths", "int32"),
        gates(gates_object, "gru", "gates", "int32"),
        stream(stream_of(stream_address)) {}

  GruRun options() const {
    GruRun options;
    options.lengths = lengths.get();
    options.gates = gates.get();
    options.stream = stream;
    return options;
  }

  const ArrayArgument x, y;
  const OptionalArray h0, last, lengths, gates;
  void* const stream;
};

}  // namespace

void bind_gru(nb::module_& m) {
  nb::class_<QuantizedGru>(m, "QuantizedGru")
      .def_static("make",
                  [](std::int64_t input_size, std::int64_t hidden_size, GruPipeline pipeline, ShiftRounding rounding,
                     GruTableKind tables, const Formats& formats, int weight_bits, int bias_bits,
                     const Integers<std::int16_t>& w, const Integers<std::int16_t>& r, const Integers<std::int32_t>& bx,
                     const Integers<std::int32_t>& br, const Integers<std::int32_t>& w_exponents,
                     const Integers<std::int32_t>& r_exponents, const Integers<std::int32_t>& bx_exponents,
                     const Integers<std::int32_t>& br_exponents, bool linear_before_reset) {
                    GruParameters p;
                    p.input_size = input_size;
                    p.hidden_size = hidden_size;
                    p.pipeline = pipeline;
                    p.rounding = rounding;
                    p.tables = tables;
                    p.linear_before_reset = linear_before_reset;
                    p.formats = formats_of(formats);
                    p.weight_bits = weight_bits;
                    p.bias_bits = bias_bits;
                    p.w = vector_of(w), p.r = vector_of(r), p.bx = vector_of(bx), p.br = vector_of(br);
                    p.w_exponents = vector_of(w_exponents), p.r_exponents = vector_of(r_exponents);
                    p.bx_exponents = vector_of(bx_exponents), p.br_exponents = vector_of(br_exponents);
                    nb::gil_scoped_release release;
                    return QuantizedGru::make(p);
                  })
      .def("table", [](const QuantizedGru& gru, int gate) { return codes_list(gru.table(gate)); })
      .def("knots", [](const QuantizedGru& gru, int gate) { return knots_tuple(gru.knots(gate)); })
      .def(
          "run",
          [](const QuantizedGru& gru, nb::handle x, nb::handle h0, nb::handle y, nb::handle last, bool reverse,
             nb::handle lengths, nb::handle gates, std::uintptr_t stream) {
            const Arguments arguments(x, h0, y, last, lengths, gates, stream);
            GruRun options = arguments.options();
            options.reverse = reverse;
            nb::gil_scoped_release release;
            gru.run(arguments.x.view(), arguments.h0.get(), arguments.y.view(), arguments.last.get(), options);
          },
          "x"_a, "h0"_a.none(), "y"_a, "last"_a.none(), "reverse"_a, "lengths"_a.none(), "gates"_a.none(), "stream"_a)
      .def(
          "trace",
          [](const QuantizedGru& gru, nb::handle x, nb::handle h0, bool reverse, nb::handle trace) {
            const char* codes = "int8 or int16";
            const ArrayArgument x_array(x, "gru", "x", codes), trace_array(trace, "gru", "trace", "int32");
            const OptionalArray h0_array(h0, "gru", "h0", codes);
            nb::gil_scoped_release release;
            gru.trace(x_array.view(), h0_array.get(), reverse, trace_array.view());
          },
          "x"_a, "h0"_a.none(), "reverse"_a, "trace"_a);

  nb::class_<GruStack>(m, "GruStack")
      .def_static("make", &GruStack::make, "cells"_a, "directions"_a, "reverse"_a = false)
      .def(
          "run",
          [](const GruStack& stack, nb::handle x, nb::handle h0, nb::handle y, nb::handle last, bool batch_first,
             nb::handle lengths, nb::handle gates, std::uintptr_t stream) {
            const Arguments arguments(x, h0, y, last, lengths, gates, stream);
            GruRun options = arguments.options();
            options.batch_first = batch_first;
            nb::gil_scoped_release release;
            stack.run(arguments.x.view(), arguments.h0.get(), arguments.y.view(), arguments.last.get(), options);
          },
          "x"_a, "h0"_a.none(), "y"_a, "last"_a.none(), "batch_first"_a, "lengths"_a.none(), "gates"_a.none(),
          "stream"_a);

  m.def(
      "quantize_fixed",
      [](nb::handle x, nb::handle format, nb::handle codes, std::uintptr_t stream) {
        const ArrayArgument x_array(x, "quantize_fixed", "x"),
            codes_array(codes, "quantize_fixed", "codes", "int8 or int16");
        const FixedFormat wanted = format_of(format);
        nb::gil_scoped_release release;
        quantize_fixed(x_array.view(), wanted, codes_array.view(), stream_of(stream));
      },
      "x"_a, "format"_a, "codes"_a, "stream"_a = 0);
  m.def(
      "dequantize_fixed",
      [](nb::handle codes, nb::handle format, nb::handle x, std::uintptr_t stream) {
        const ArrayArgument codes_array(codes, "dequantize_fixed", "codes", "int8 or int16"),
            x_array(x, "dequantize_fixed", "out");
        const FixedFormat given = format_of(format);
        nb::gil_scoped_release release;
        dequantize_fixed(codes_array.view(), given, x_array.view(), stream_of(stream));
      },
      "codes"_a, "format"_a, "x"_a, "stream"_a = 0);
}

}  // namespace qcore::bindings
