#include "recurrent/reference.h"

#include <algorithm>

#include "lstm/dispatch.h"

namespace qcore {
namespace {

using numerics::IntegerLanes;
using numerics::kLstmGates;

// One row's steps.
template <class L>
class Row {
 public:
  Row(const LstmStorage& lstm, Scratch& scratch)
      : lstm_(lstm),
        c_(lstm.parameters.input_size),
        size_(lstm.parameters.hidden_size),
        state_size_(lstm.parameters.state_size()) {
    x = scratch.take<std::int32_t>(c_);
    h = scratch.take<std::int32_t>(state_size_);
    cell = scratch.take<std::int32_t>(size_);
    trace = scratch.take<std::int32_t>(lstm_trace_size(lstm.parameters));
    wx_ = scratch.take<std::int64_t>(kLstmGates * size_);
    rh_ = scratch.take<std::int64_t>(kLstmGates * size_);
    m_ = scratch.take<std::int32_t>(size_);
    projected_ = scratch.take<std::int64_t>(state_size_);
  }

  // From x, h and cell to h, cell and trace.
  void step() const {
    const LstmParameters& p = lstm_.parameters;
    const LstmFormats& f = p.formats;
    const FixedFormat* const tensors[] = {&f.i_pre,
                                          &f.f_pre,
                                          &f.g_pre,
                                          &f.o_pre,
                                          &f.i,
                                          &f.f,
                                          &f.g,
                                          &f.o,
                                          &f.c,
                                          &f.c_tanh,
                                          p.projection_size ? &f.m : &f.h};
    constexpr int kTensors = sizeof tensors / sizeof *tensors;
    const auto& t = lstm_.tables;
    const numerics::LstmTables<L> tables{{t[0].data(), t[1].data(), t[2].data(), t[3].data()}, t[4].data()};
    multiply<L>(p.w, x, f.x.zero_point, c_, lstm_.wx, lstm_.cell.wx, wx_);
    multiply<L>(p.r, h, f.h.zero_point, state_size_, lstm_.rh, lstm_.cell.rh, rh_);
    for (std::int64_t n = 0; n < kLstmGates * size_; ++n) {
      trace[n] = code(wx_[n], f.wx);
      trace[kLstmGates * size_ + n] = code(rh_[n], f.rh);
    }
    for (std::int64_t j = 0; j < size_; ++j) {
      numerics::LstmInputs<L> in{};
      for (int gate = 0; gate < kLstmGates; ++gate) {
        in.wx[gate] = wx_[gate * size_ + j];
        in.rh[gate] = rh_[gate * size_ + j];
      }
      in.c = cell[j];
      for (int i = 0; lstm_.cell.peepholes && i < numerics::kLstmPeepholes; ++i)
        in.peepholes[i] = p.peepholes[i * size_ + j];
      const auto out = lstm_.cell.peepholes ? numerics::lstm_cell<L, true>(in, lstm_.cell, tables)
                                            : numerics::lstm_cell<L>(in, lstm_.cell, tables);
      m_[j] = static_cast<std::int32_t>(out.m);
      cell[j] = static_cast<std::int32_t>(out.c);
      const typename L::I centered[] = {out.pre[0],   out.pre[1],   out.pre[2], out.pre[3], out.gates[0], out.gates[1],
                                        out.gates[2], out.gates[3], out.c,      out.c_tanh, out.m};
      for (int i = 0; i < kTensors; ++i) trace[(2 * kLstmGates + i) * size_ + j] = code(centered[i], *tensors[i]);
    }
    if (p.projection_size == 0) {
      std::copy(m_, m_ + size_, h);
      return;
    }
    multiply<L>(p.projection, m_, f.m.zero_point, size_, lstm_.projection, range_of(f.h), projected_);
    for (std::int64_t n = 0; n < state_size_; ++n) {
      h[n] = static_cast<std::int32_t>(projected_[n]);
      trace[(2 * kLstmGates + kTensors) * size_ + n] = code(projected_[n], f.h);
    }
  }

  std::int32_t *x, *h, *cell;  // codes less their zero point
  std::int32_t* trace;         // codes, as QuantizedLstm::trace has them

 private:
  static std::int32_t code(typename L::I centered, const FixedFormat& format) {
    return static_cast<std::int32_t>(centered + format.zero_point);
  }

  const LstmStorage& lstm_;
  const std::int64_t c_, size_, state_size_;
  std::int64_t *wx_, *rh_, *projected_;
  std::int32_t* m_;  // o * tanh(c), codes less their zero point
};

template <class L>
void run(const LstmProblem& problem) {
  const LstmStorage& lstm = *problem.lstm;
  Scratch scratch;
  const Row<L> row(lstm, scratch);
  const LstmParameters& p = lstm.parameters;
  const ReferenceFormats formats{p.input_size,  p.hidden_size, p.state_size(),
                                 lstm.x_format, lstm.h_format, lstm.c_format};
  run_reference(problem, row, formats, lstm_trace_size(p), nullptr, 0);
}

}  // namespace

void run_lstm_reference(const LstmProblem& problem) {
  if (problem.lstm->parameters.rounding == ShiftRounding::half_away)
    run<IntegerLanes<numerics::ShiftRounding::half_away>>(problem);
  else
    run<IntegerLanes<numerics::ShiftRounding::half_even>>(problem);
}

}  // namespace qcore
