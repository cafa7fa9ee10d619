#pragma once

#include "numerics/recurrent/lanes.h"

// One channel of one step of a fixed-point LSTM, torch.nn.LSTM's cell:
//   i, f, o = sigmoid(W x + R h + b)   g = tanh(Wg x + Rg h + bg)
//   c' = f * c + i * g                 m = o * tanh(c')
// m is the next state h, or with a projection (torch's proj_size) what h is the product of. Numbers are codes less
// their zero points throughout; gates are in the order i, f, g, o. Biases are part of wx.
namespace qcore::numerics {

constexpr int kLstmGates = 4;

// Parameters that all channels share. A shift is the difference of two exponents.
struct LstmCell {
  CodeRange pre[kLstmGates], wx, rh, c, m;
  int wx_to_pre[kLstmGates], rh_to_pre[kLstmGates];
  // f * c and i * g are shifted to the left, one of them by 0, to the finer of their scales; their sum to the right.
  int f_c_left, i_g_left, sum_to_c;
  int o_c_tanh_to_m;
};

// Sigmoid for i, f and o, tanh for g, and tanh of c, by their argument's code less its lowest.
template <class L>
struct LstmTables {
  typename L::Table gates[kLstmGates], c_tanh;
};

template <class L>
struct LstmInputs {
  typename L::I wx[kLstmGates], rh[kLstmGates], c;
};

template <class L>
struct LstmOutputs {
  typename L::I pre[kLstmGates], gates[kLstmGates], c, c_tanh, m;
};

// The cell in three stages with look-ups between: the arguments of the gates, c, and m.

template <class L>
QCORE_NUMERIC void lstm_arguments(const LstmInputs<L>& in, const LstmCell& cell, LstmOutputs<L>& out) {
  for (int gate = 0; gate < kLstmGates; ++gate) {
    const typename L::I wx = L::shifted(in.wx[gate], cell.wx_to_pre[gate]);
    const typename L::I rh = L::shifted(in.rh[gate], cell.rh_to_pre[gate]);
    out.pre[gate] = L::clamped(L::add(wx, rh), cell.pre[gate]);
  }
}

template <class L>
QCORE_NUMERIC void lstm_cell_state(const LstmInputs<L>& in, const LstmCell& cell, LstmOutputs<L>& out) {
  const typename L::I sum =
      L::shifted_sum(out.gates[1], in.c, cell.f_c_left, out.gates[0], out.gates[2], cell.i_g_left, cell.sum_to_c);
  out.c = L::clamped(sum, cell.c);
}

template <class L>
QCORE_NUMERIC void lstm_output(const LstmCell& cell, LstmOutputs<L>& out) {
  out.m = L::clamped(L::shifted_product(out.gates[3], out.c_tanh, cell.o_c_tanh_to_m), cell.m);
}

template <class L>
QCORE_NUMERIC LstmOutputs<L> lstm_cell(const LstmInputs<L>& in, const LstmCell& cell, const LstmTables<L>& tables) {
  LstmOutputs<L> out{};
  lstm_arguments(in, cell, out);
  for (int gate = 0; gate < kLstmGates; ++gate)
    out.gates[gate] = L::look_up(tables.gates[gate], table_index<L>(out.pre[gate], cell.pre[gate]));
  lstm_cell_state(in, cell, out);
  out.c_tanh = L::look_up(tables.c_tanh, table_index<L>(out.c, cell.c));
  lstm_output(cell, out);
  return out;
}

}  // namespace qcore::numerics
