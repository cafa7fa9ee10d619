#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "dlpack_views.h"
#include "fixed_arrays.h"
#include "qcore/recurrent/lstm.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {
namespace {

// Formats in LstmFormats' order; that of m is there with a projection only.
LstmFormats formats_of(const Formats& rows, bool projected) {
  LstmFormats f;
  FixedFormat* const all[] = {&f.x,     &f.h, &f.c, &f.wx, &f.rh, &f.i_pre,  &f.f_pre, &f.g_pre,
                              &f.o_pre, &f.i, &f.f, &f.g,  &f.o,  &f.c_tanh, &f.m};
  constexpr std::size_t count = sizeof all / sizeof *all;
  read_formats("lstm", rows, all, projected ? count : count - 1);
  return f;
}

// The arrays of a run.
struct Arguments {
  Arguments(nb::handle x_object, nb::handle h0_object, nb::handle c0_object, nb::handle y_object,
            nb::handle h_last_object, nb::handle c_last_object, nb::handle lengths_object,
            std::uintptr_t stream_address)
      : x(x_object, "lstm", "x", kCodesOrNumbers),
        y(y_object, "lstm", "out", kCodesOrNumbers),
        h0(h0_object, "lstm", "h0", kCodesOrNumbers),
        c0(c0_object, "lstm", "c0", kCodesOrNumbers),
        h_last(h_last_object, "lstm", "h_last", kCodesOrNumbers),
        c_last(c_last_object, "lstm", "c_last", kCodesOrNumbers),
        lengths(lengths_object, "lstm", "lengths", "int32"),
        stream(stream_of(stream_address)) {}

  LstmStates states() const { return {h0.get(), c0.get(), h_last.get(), c_last.get()}; }

  LstmRun options() const {
    LstmRun options;
    options.lengths = lengths.get();
    options.stream = stream;
    return options;
  }

  const ArrayArgument x, y;
  const OptionalArray h0, c0, h_last, c_last, lengths;
  void* const stream;
};

}  // namespace

void bind_lstm(nb::module_& m) {
  nb::class_<QuantizedLstm>(m, "QuantizedLstm")
      .def_static("make",
                  [](std::int64_t input_size, std::int64_t hidden_size, ShiftRounding rounding, TableKind tables,
                     const Formats& formats, int weight_bits, int bias_bits, const Integers<std::int16_t>& w,
                     const Integers<std::int16_t>& r, const Integers<std::int32_t>& b,
                     const Integers<std::int32_t>& w_exponents, const Integers<std::int32_t>& r_exponents,
                     const Integers<std::int32_t>& b_exponents, std::int64_t projection_size,
                     const Integers<std::int16_t>& projection, const Integers<std::int32_t>& projection_exponents,
                     const Integers<std::int16_t>& peepholes, const Integers<std::int32_t>& peephole_exponents) {
                    LstmParameters p;
                    p.input_size = input_size;
                    p.hidden_size = hidden_size;
                    p.rounding = rounding;
                    p.tables = tables;
                    p.projection_size = projection_size;
                    p.formats = formats_of(formats, projection_size != 0);
                    p.weight_bits = weight_bits;
                    p.bias_bits = bias_bits;
                    p.w = vector_of(w), p.r = vector_of(r), p.b = vector_of(b);
                    p.w_exponents = vector_of(w_exponents), p.r_exponents = vector_of(r_exponents);
                    p.b_exponents = vector_of(b_exponents);
                    p.projection = vector_of(projection);
                    p.projection_exponents = vector_of(projection_exponents);
                    p.peepholes = vector_of(peepholes);
                    p.peephole_exponents = vector_of(peephole_exponents);
                    nb::gil_scoped_release release;
                    return QuantizedLstm::make(p);
                  })
      .def("table", [](const QuantizedLstm& lstm, int index) { return codes_list(lstm.table(index)); })
      .def("knots", [](const QuantizedLstm& lstm, int index) { return knots_tuple(lstm.knots(index)); })
      .def(
          "run",
          [](const QuantizedLstm& lstm, nb::handle x, nb::handle h0, nb::handle c0, nb::handle y, nb::handle h_last,
             nb::handle c_last, bool reverse, nb::handle lengths, std::uintptr_t stream) {
            const Arguments arguments(x, h0, c0, y, h_last, c_last, lengths, stream);
            LstmRun options = arguments.options();
            options.reverse = reverse;
            nb::gil_scoped_release release;
            lstm.run(arguments.x.view(), arguments.y.view(), arguments.states(), options);
          },
          "x"_a, "h0"_a.none(), "c0"_a.none(), "y"_a, "h_last"_a.none(), "c_last"_a.none(), "reverse"_a,
          "lengths"_a.none(), "stream"_a = 0)
      .def(
          "trace",
          [](const QuantizedLstm& lstm, nb::handle x, nb::handle h0, nb::handle c0, bool reverse, nb::handle trace) {
            const char* codes = "int8 or int16";
            const ArrayArgument x_array(x, "lstm", "x", codes), trace_array(trace, "lstm", "trace", "int32");
            const OptionalArray h0_array(h0, "lstm", "h0", codes), c0_array(c0, "lstm", "c0", codes);
            nb::gil_scoped_release release;
            lstm.trace(x_array.view(), h0_array.get(), c0_array.get(), reverse, trace_array.view());
          },
          "x"_a, "h0"_a.none(), "c0"_a.none(), "reverse"_a, "trace"_a);

  nb::class_<LstmStack>(m, "LstmStack")
      .def_static("make", &LstmStack::make, "cells"_a, "directions"_a, "reverse"_a = false)
      .def(
          "run",
          [](const LstmStack& stack, nb::handle x, nb::handle h0, nb::handle c0, nb::handle y, nb::handle h_last,
             nb::handle c_last, bool batch_first, nb::handle lengths, std::uintptr_t stream) {
            const Arguments arguments(x, h0, c0, y, h_last, c_last, lengths, stream);
            LstmRun options = arguments.options();
            options.batch_first = batch_first;
            nb::gil_scoped_release release;
            stack.run(arguments.x.view(), arguments.y.view(), arguments.states(), options);
          },
          "x"_a, "h0"_a.none(), "c0"_a.none(), "y"_a, "h_last"_a.none(), "c_last"_a.none(), "batch_first"_a,
          "lengths"_a.none(), "stream"_a = 0);
}

}  // namespace qcore::bindings
