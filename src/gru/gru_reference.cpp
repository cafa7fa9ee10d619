#include "gru/kernels.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

using numerics::GruInputs;
using numerics::GruOutputs;

std::int32_t load_code(const TensorView& view, std::int64_t at) {
  return view.dtype == DType::i8 ? static_cast<const std::int8_t*>(view.data)[at]
                                 : static_cast<const std::int16_t*>(view.data)[at];
}

void store_code(const TensorView& view, std::int64_t at, std::int32_t code) {
  if (view.dtype == DType::i8)
    static_cast<std::int8_t*>(view.data)[at] = static_cast<std::int8_t>(code);
  else
    static_cast<std::int16_t*>(view.data)[at] = static_cast<std::int16_t>(code);
}

// Codes of weights times `input` for all rows of 3H.
template <numerics::ShiftRounding kRounding>
void multiply(const std::vector<std::int16_t>& weights, const std::int32_t* input, std::int64_t features,
              const std::vector<std::int64_t>& offsets, const std::vector<int>& shifts, const numerics::GruCodes& to,
              std::int32_t* codes) {
  for (std::size_t n = 0; n < shifts.size(); ++n) {
    std::int64_t total = offsets[n];
    for (std::int64_t k = 0; k < features; ++k)
      total += static_cast<std::int64_t>(weights[n * features + k]) * input[k];
    codes[n] = numerics::gru_rescale<kRounding>(total, shifts[n], to);
  }
}

template <numerics::ShiftRounding kRounding>
void step(const GruStorage& gru, const std::int32_t* x, std::int32_t* h, std::int32_t* wx, std::int32_t* rh,
          std::int32_t* gates) {
  const GruParameters& p = gru.parameters;
  const std::int64_t size = p.hidden_size;
  multiply<kRounding>(p.w, x, p.input_size, gru.wx_offsets, gru.wx_shifts, gru.cell.wx, wx);
  multiply<kRounding>(p.r, h, size, gru.rh_offsets, gru.rh_shifts, gru.cell.rh, rh);
  for (std::int64_t j = 0; j < size; ++j) {
    const GruInputs in{{wx[j], wx[size + j], wx[2 * size + j]}, {rh[j], rh[size + j], rh[2 * size + j]}, h[j]};
    const GruOutputs out = p.pipeline == GruPipeline::staged
                               ? numerics::gru_staged<kRounding>(in, gru.biases[j], gru.cell)
                               : numerics::gru_fused<kRounding>(in, gru.cell);
    h[j] = out.h;
    gates[j] = out.z;
    gates[size + j] = out.r;
    gates[2 * size + j] = out.g;
    gates[3 * size + j] = out.rh_with_bias;
  }
}

}  // namespace

void run_gru_reference(const GruProblem& problem) {
  const GruStorage& gru = *problem.gru;
  const std::int64_t c = gru.parameters.input_size, size = gru.parameters.hidden_size;
  Scratch scratch;
  auto* x = scratch.take<std::int32_t>(c);
  auto* h = scratch.take<std::int32_t>(size);
  auto* wx = scratch.take<std::int32_t>(3 * size);
  auto* rh = scratch.take<std::int32_t>(3 * size);
  auto* gates = scratch.take<std::int32_t>(4 * size);
  const auto at = [](const TensorView& view, std::int64_t i, std::int64_t j) {
    return i * view.strides[0] + j * view.strides[1];
  };
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t length =
        problem.lengths.data ? static_cast<const std::int32_t*>(problem.lengths.data)[b * problem.lengths.strides[0]]
                             : problem.steps;
    for (std::int64_t j = 0; j < size; ++j)
      h[j] = problem.h0.data ? load_code(problem.h0, at(problem.h0, b, j)) : gru.cell.h.zero;
    for (std::int64_t i = 0; i < problem.steps; ++i) {
      const std::int64_t t = problem.reverse && i < length ? length - 1 - i : i;
      const std::int64_t y = at(problem.y, t, b);
      if (i >= length) {
        for (std::int64_t j = 0; j < size; ++j) store_code(problem.y, y + j * problem.y.strides[2], gru.cell.h.zero);
        if (problem.gates.data)
          for (std::int64_t j = 0; j < 4 * size; ++j)
            static_cast<std::int32_t*>(problem.gates.data)[at(problem.gates, t, b) + j * problem.gates.strides[2]] = 0;
        continue;
      }
      for (std::int64_t k = 0; k < c; ++k) x[k] = load_code(problem.x, at(problem.x, t, b) + k * problem.x.strides[2]);
      if (gru.parameters.rounding == ShiftRounding::half_away)
        step<numerics::ShiftRounding::half_away>(gru, x, h, wx, rh, gates);
      else
        step<numerics::ShiftRounding::half_even>(gru, x, h, wx, rh, gates);
      for (std::int64_t j = 0; j < size; ++j) store_code(problem.y, y + j * problem.y.strides[2], h[j]);
      if (problem.gates.data)
        for (std::int64_t j = 0; j < 4 * size; ++j)
          static_cast<std::int32_t*>(problem.gates.data)[at(problem.gates, t, b) + j * problem.gates.strides[2]] =
              gates[j];
    }
    if (problem.last.data)
      for (std::int64_t j = 0; j < size; ++j) store_code(problem.last, at(problem.last, b, j), h[j]);
  }
}

}  // namespace qcore
