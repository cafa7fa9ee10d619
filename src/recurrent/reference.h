#pragma once

#include "recurrent/code_access.h"
#include "recurrent/parameters.h"
#include "recurrent/problem.h"
#include "runtime/memory.h"

// The definitions' loops over rows and steps, and their products; an operator's reference.cpp has its cell.
namespace qcore {

// Codes (less their zero point) of weights times `input` for all rows of weights. The input's zero point is in the
// offsets.
template <class L>
void multiply(const std::vector<std::int16_t>& weights, const std::int32_t* input, std::int32_t input_zero,
              std::int64_t features, const PreparedProduct& product, const numerics::CodeRange& range,
              std::int64_t* products) {
  for (std::size_t n = 0; n < product.shifts.size(); ++n) {
    std::int64_t total = product.offsets[n];
    for (std::int64_t k = 0; k < features; ++k)
      total += static_cast<std::int64_t>(weights[n * features + k]) * (input[k] + input_zero);
    products[n] = L::clamped(L::shifted(total, product.shifts[n]), range);
  }
}

struct ReferenceFormats {
  std::int64_t input_size, hidden_size, state_size;  // C, H, and the size of h
  CodeFormat x, h, cell;
};

inline void store_codes(const TensorView& to, std::int64_t at, std::int64_t stride, std::int64_t count,
                        const std::int32_t* centered, const CodeFormat& format) {
  for (std::int64_t j = 0; j < count; ++j)
    store_centered(to.data, to.dtype, at + j * stride, centered ? centered[j] : 0, format);
}

// `row` has x, h, cell (null without one) and trace of a row, and step(), which makes the next h, cell and trace of
// them. The trace has `trace_size` codes; `gates` are its tensors of H codes that the problem's gates hold.
template <class Row>
void run_reference(const RecurrentProblem& problem, const Row& row, const ReferenceFormats& formats,
                   std::int64_t trace_size, const int* gates, std::int64_t gate_tensors) {
  const std::int64_t c = formats.input_size, size = formats.hidden_size, state_size = formats.state_size;
  const auto at = [](const TensorView& view, std::int64_t i, std::int64_t j) {
    return i * view.strides[0] + j * view.strides[1];
  };
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t length =
        problem.lengths.data ? static_cast<const std::int32_t*>(problem.lengths.data)[b * problem.lengths.strides[0]]
                             : problem.steps;
    const auto begin = [&](const TensorView& from, std::int64_t count, const CodeFormat& format, std::int32_t* to) {
      for (std::int64_t j = 0; j < count; ++j)
        to[j] = from.data ? load_centered(from.data, from.dtype, at(from, b, j), format) : 0;
    };
    begin(problem.h0, state_size, formats.h, row.h);
    if (row.cell) begin(problem.c0, size, formats.cell, row.cell);
    for (std::int64_t i = 0; i < problem.steps; ++i) {
      const std::int64_t t = problem.reverse && i < length ? length - 1 - i : i;
      const std::int64_t y = at(problem.y, t, b);
      if (i < length) {
        for (std::int64_t k = 0; k < c; ++k)
          row.x[k] =
              load_centered(problem.x.data, problem.x.dtype, at(problem.x, t, b) + k * problem.x.strides[2], formats.x);
        row.step();
      }
      store_codes(problem.y, y, problem.y.strides[2], state_size, i < length ? row.h : nullptr, formats.h);
      const auto store = [&](const TensorView& to, std::int64_t n, std::int32_t code) {
        static_cast<std::int32_t*>(to.data)[at(to, t, b) + n * to.strides[2]] = i < length ? code : 0;
      };
      if (problem.gates.data)
        for (std::int64_t n = 0; n < gate_tensors * size; ++n)
          store(problem.gates, n, row.trace[gates[n / size] * size + n % size]);
      if (problem.trace.data)
        for (std::int64_t n = 0; n < trace_size; ++n) store(problem.trace, n, row.trace[n]);
    }
    const auto end = [&](const TensorView& to, std::int64_t count, const CodeFormat& format, const std::int32_t* from) {
      if (to.data) store_codes(to, at(to, b, 0), to.strides[1], count, from, format);
    };
    end(problem.last, state_size, formats.h, row.h);
    end(problem.last_cell, size, formats.cell, row.cell);
  }
}

}  // namespace qcore
