#pragma once

#include "numerics/recurrent/lanes.h"

// One channel of one step of a fixed-point LSTM, torch.nn.LSTM's cell:
//   i, f, o = sigmoid(W x + R h + b)   g = tanh(Wg x + Rg h + bg)
//   c' = f * c + i * g                 m = o * tanh(c')
// m is the next state h, or with a projection (torch's proj_size) what h is the product of. Numbers are codes less
// their zero points throughout; gates are in the order i, f, g, o. Biases are part of wx. With peepholes, which ONNX
// has, the arguments of i and f have a product of a weight and c each, that of o one of a weight and c'.
namespace qcore::numerics {

constexpr int kLstmGates = 4, kLstmPeepholes = 3;

// Gate of each peephole.
QCORE_NUMERIC int lstm_peephole_gate(int peephole) { return peephole < 2 ? peephole : 3; }

// Parameters that all channels share. A shift is the difference of two exponents, or what an L's lanes make of it.
template <class Shift>
struct LstmCellOf {
  CodeRange pre[kLstmGates], wx, rh, c, m;
  Shift wx_to_pre[kLstmGates], rh_to_pre[kLstmGates];
  // f * c and i * g are shifted to the left, one of them by 0, to the finer of their scales; their sum to the right.
  int f_c_left, i_g_left;
  Shift sum_to_c, o_c_tanh_to_m;
  bool peepholes;
  Shift p_c_to_pre[kLstmPeepholes];  // i, f, o
};
using LstmCell = LstmCellOf<int>;

// Sigmoid for i, f and o, tanh for g, and tanh of c, by their argument's code less its lowest.
template <class L>
struct LstmTables {
  typename L::Table gates[kLstmGates], c_tanh;
};

template <class L>
struct LstmInputs {
  typename L::I wx[kLstmGates], rh[kLstmGates], c;
  typename L::I peepholes[kLstmPeepholes];  // of cells that have them
};

template <class L>
struct LstmOutputs {
  typename L::I pre[kLstmGates], gates[kLstmGates], c, c_tanh, m;
};

template <class L, class Shift>
QCORE_NUMERIC typename L::I lstm_peephole(const LstmInputs<L>& in, const LstmCellOf<Shift>& cell, int peephole,
                                          typename L::I c) {
  return L::shifted_product(in.peepholes[peephole], c, cell.p_c_to_pre[peephole]);
}

// The cell in three stages with look-ups between: the arguments of the gates, c, and m. With peepholes the argument of
// o is the sum of two products only, until lstm_output_argument has c'.

template <class L, bool kPeepholes = false, class Shift>
QCORE_NUMERIC void lstm_arguments(const LstmInputs<L>& in, const LstmCellOf<Shift>& cell, LstmOutputs<L>& out) {
  for (int gate = 0; gate < kLstmGates; ++gate) {
    const typename L::I wx = L::shifted(in.wx[gate], cell.wx_to_pre[gate]);
    const typename L::I rh = L::shifted(in.rh[gate], cell.rh_to_pre[gate]);
    typename L::I sum = L::add(wx, rh);
    if constexpr (kPeepholes) {
      if (gate < 2) sum = L::add(sum, lstm_peephole<L>(in, cell, gate, in.c));
      out.pre[gate] = gate == 3 ? sum : L::clamped(sum, cell.pre[gate]);
    } else {
      out.pre[gate] = L::clamped(sum, cell.pre[gate]);
    }
  }
}

template <class L, class Shift>
QCORE_NUMERIC void lstm_cell_state(const LstmInputs<L>& in, const LstmCellOf<Shift>& cell, LstmOutputs<L>& out) {
  const typename L::I sum =
      L::shifted_sum(out.gates[1], in.c, cell.f_c_left, out.gates[0], out.gates[2], cell.i_g_left, cell.sum_to_c);
  out.c = L::clamped(sum, cell.c);
}

template <class L, class Shift>
QCORE_NUMERIC void lstm_output_argument(const LstmInputs<L>& in, const LstmCellOf<Shift>& cell, LstmOutputs<L>& out) {
  out.pre[3] = L::clamped(L::add(out.pre[3], lstm_peephole<L>(in, cell, 2, out.c)), cell.pre[3]);
}

template <class L, class Shift>
QCORE_NUMERIC void lstm_output(const LstmCellOf<Shift>& cell, LstmOutputs<L>& out) {
  out.m = L::clamped(L::shifted_product(out.gates[3], out.c_tanh, cell.o_c_tanh_to_m), cell.m);
}

template <class L, class Shift>
QCORE_NUMERIC void lstm_gate(int gate, const LstmCellOf<Shift>& cell, const LstmTables<L>& tables,
                             LstmOutputs<L>& out) {
  out.gates[gate] = L::look_up(tables.gates[gate], table_index<L>(out.pre[gate], cell.pre[gate]));
}

template <class L, bool kPeepholes = false, class Shift>
QCORE_NUMERIC LstmOutputs<L> lstm_cell(const LstmInputs<L>& in, const LstmCellOf<Shift>& cell,
                                       const LstmTables<L>& tables) {
  LstmOutputs<L> out{};
  lstm_arguments<L, kPeepholes>(in, cell, out);
  for (int gate = 0; gate < (kPeepholes ? 3 : kLstmGates); ++gate) lstm_gate(gate, cell, tables, out);
  lstm_cell_state(in, cell, out);
  if constexpr (kPeepholes) {
    lstm_output_argument(in, cell, out);
    lstm_gate(3, cell, tables, out);
  }
  out.c_tanh = L::look_up(tables.c_tanh, table_index<L>(out.c, cell.c));
  lstm_output(cell, out);
  return out;
}

}  // namespace qcore::numerics
